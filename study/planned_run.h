#pragma once

// A measured run as a schedule that can be simulated again with other ceilings.

#include <optional>

#include "schedules/schedule.h"
#include "sim/simulator.h"
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

 private:
  RunJob job_;
  Schedule schedule_;
};

/// Step time at the priors, and what of it moves with each ceiling: near the priors
///   T(factors) = step_s + sum_i parts_s[i] * (exp(sense_i * log_factor_i) - 1),
/// exact where kernels do not overlap with anything else.
struct RunSensitivity {
  double step_s = 0;
  std::vector<double> parts_s;
  double at(const CeilingFactors& factors) const;
};

RunSensitivity sensitivity_of(const PlannedRun& run);

}  // namespace foreshard
