#pragma once

// The planner: model + configuration -> schedule. A pure function without a clock: it runs the
// model symbolically, as eager PyTorch's host would, with the framework's hooks, and writes down
// what the host issues.

#include <cstdint>
#include <string>
#include <vector>

#include "models/module_tree.h"
#include "schedules/planner/config.h"
#include "schedules/schedule.h"

namespace foreshard {

struct PlanOptions {
  std::int64_t steps = 2;  ///< Optimizer steps written out; the last is the steady state.
  std::vector<std::int64_t>
      ranks;  ///< Empty: one program for each class of ranks. Else: only the classes of these.
  /// Write tensors, operands and initialisation (what an executor needs). Off: only what a
  /// simulation needs.
  bool executable = true;
  /// Plan equal blocks once where that is possible (a plan that is not executable): the plan is the
  /// same. Off: for tests.
  bool share_blocks = true;
  /// Experts whose shares of the tokens the host reads get none: what is recorded on a device
  /// without data. Off: the shares are even.
  bool idle_experts = false;
};

/// Steps until the last one written repeats: optimizer states are made in the first; DDP rebuilds
/// its buckets in the second, with a static graph in the third (D-4).
std::int64_t steady_steps(const ParallelConfig& config);

/// Plans a job. InputError, with every problem at once, if the configuration is impossible for the
/// model.
Schedule plan(const Model& model, const ParallelConfig& config, const PlanOptions& options = {});

}  // namespace foreshard
