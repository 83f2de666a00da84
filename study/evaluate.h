#pragma once

// Plans and simulates one job: the step that every study repeats.

#include <memory>
#include <optional>
#include <string>

#include "schedules/planner/planner.h"
#include "schedules/schedule.h"
#include "sim/cost_model.h"
#include "sim/options.h"
#include "sim/result.h"
#include "sim/simulator.h"
#include "study/job.h"

namespace foreshard {

/// Steps until the allocator has all segments that it will ever have: the first ones still take
/// what later ones find in the cache. Measured runs are averages of later ones.
inline constexpr std::int32_t kSettledSteps = 4;

/// So many are simulated where the allocator gave back and asked anew in one of them.
inline constexpr std::int32_t kPatientSteps = 12;

struct Evaluation {
  Schedule schedule;
  SimulationResult result;

  /// 0 for a model without tokens.
  double tokens_per_second_per_gpu() const;
  /// Sequences or images; of any model.
  double samples_per_second_per_gpu(const Job& job) const;
  /// Model FLOPs (without recomputation) over time and dense peak of the job's compute dtype; 0
  /// where the peak is unknown.
  double model_flops_utilisation(const Job& job) const;
  /// The same with the executed FLOPs.
  double hardware_flops_utilisation(const Job& job) const;
};

/// 0 for a model without tokens.
double tokens_per_second_per_gpu(const Schedule& schedule, Time step);
/// Samples per second of `after` against `before`: what a change of a job's options is worth. A
/// step's time alone says nothing where the change moves its batch.
double speedup(const Job& job_before, const Evaluation& before, const Job& job_after,
               const Evaluation& after);
/// The dense peak that utilisations are fractions of, as people write it: "bf16", "TF32".
std::string peak_name(const Job& job);
/// Requests fit, but in some step only after cached segments had been given back and asked for
/// anew: close to the limit, and slow.
bool is_borderline(const MemoryResult& memory);

/// InputError if the job is impossible: for the model, or for the machines. The allocator is the
/// job's, whatever `options` say; without a number of steps as many are simulated as memory needs
/// to settle.
Evaluation evaluate(const Job& job, const SimulationOptions& options = {});
/// The schedule that evaluate() simulates: as many steps as it takes until plans repeat.
Schedule plan_of(const Job& job);
/// And what it costs on the job's machines.
std::unique_ptr<CostModel> cost_model_of(const Job& job, const Schedule& schedule);
/// What evaluate() does with a simulator of that schedule. A job that does not fit is simulated on
/// a device without limit, so that its times and peaks do not depend on how far it got: capacity,
/// verdict, failed request and retries alone are of the job's device.
SimulationResult settled_run(const Job& job, const Simulator& simulator,
                             const SimulationOptions& options);
/// Memory on the job's own device, as settled_run() finds it before anything else.
struct OwnMemory {
  /// Without the owners, and with the peaks up to where a job that does not fit came.
  MemoryResult memory;
  SimulationOptions options;               ///< With which it was found.
  std::optional<SimulationResult> result;  ///< Where memory asked for all of it.
};
/// Quick where the simulator's memory is timeless.
OwnMemory settled_memory(const Job& job, const Simulator& simulator,
                         const SimulationOptions& options);
/// The rest of settled_run().
SimulationResult settled_run(const Job& job, const Simulator& simulator, OwnMemory own);
/// Its options on the job's device.
SimulationOptions settled_options(const Job& job, const SimulationOptions& options);
/// With a schedule that is already there.
SimulationResult simulate_on(const Schedule& schedule, const HardwareProfile& hardware,
                             const SimulationOptions& options = {});

}  // namespace foreshard
