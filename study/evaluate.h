#pragma once

// Plans and simulates one job: the step that every study repeats.

#include <optional>
#include <string>

#include "schedules/planner/planner.h"
#include "schedules/schedule.h"
#include "sim/options.h"
#include "sim/result.h"
#include "study/job.h"

namespace foreshard {

/// Steps until the allocator has all segments that it will ever have: the first ones still take
/// what later ones find in the cache. Measured runs are averages of later ones.
inline constexpr std::int32_t kSettledSteps = 4;

struct Evaluation {
  Schedule schedule;
  SimulationResult result;

  double tokens_per_second_per_gpu() const;
  /// Model FLOPs (without recomputation) over time and dense peak of the job's compute dtype; 0
  /// where the peak is unknown.
  double model_flops_utilisation(const Job& job) const;
  /// The same with the executed FLOPs.
  double hardware_flops_utilisation(const Job& job) const;
};

/// InputError if the job is impossible: for the model, or for the machines. The allocator is the
/// job's, whatever `options` say; without a number of steps as many are simulated as memory needs
/// to settle.
Evaluation evaluate(const Job& job, const SimulationOptions& options = {});
/// With a schedule that is already there.
SimulationResult simulate_on(const Schedule& schedule, const HardwareProfile& hardware,
                             const SimulationOptions& options = {});

}  // namespace foreshard
