#pragma once

// Optimizers as PyTorch runs them: states made at the first step, temporaries in the order of
// torch/optim/{adam,sgd}.py.

#include <memory>

#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/host/host.h"

namespace foreshard {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Parameters without a gradient are skipped; `step` counts from 1.
  /// `first`: index of parameters[0] among all that the optimizer ever sees (its states are kept by
  /// index).
  virtual void step(Host& host, std::span<const LocalParameter> parameters,
                    std::size_t first = 0) = 0;
};

/// The optimizer of a configuration; null for OptimizerKind::kNone.
std::unique_ptr<Optimizer> make_optimizer(const ParallelConfig& config);

}  // namespace foreshard
