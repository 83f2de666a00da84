#pragma once

// A measured run as a schedule that can be simulated again with other ceilings.

#include <optional>

#include "schedules/schedule.h"
#include "sim/simulator.h"
#include "study/fit_factors.h"
#include "study/run_job.h"
#include "study/training_ceilings.h"

namespace foreshard {

class PlannedRun {
 public:
  /// Plans rank 0. InputError if the run cannot be planned.
  explicit PlannedRun(RunJob job);

  const RunJob& job() const { return job_; }
  const Schedule& schedule() const { return schedule_; }
  /// The run's parameters, with what its schedule does not hold at this GPU's memory bandwidth.
  CostParameters parameters(const GpuProfile& gpu) const;

  /// With the hardware's own (calibrated) constants, or with these factors on the priors.
  SimulationResult simulate(const std::optional<CeilingFactors>& factors = std::nullopt,
                            MemoryDetail memory = MemoryDetail::kClasses,
                            Detail detail = Detail::kTimesOnly) const;
  /// On another machine than the run's.
  SimulationResult simulate_on(const HardwareProfile& hardware, MemoryDetail memory,
                               Detail detail = Detail::kTimesOnly) const;

 private:
  RunJob job_;
  Schedule schedule_;
};

/// Step time at the priors, and what of it moves with each ceiling.
StepModel sensitivity_of(const PlannedRun& run);

}  // namespace foreshard
