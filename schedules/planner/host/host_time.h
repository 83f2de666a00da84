#pragma once

// Host time on the reference CPU that no launch accounts for, measured on PyTorch 2.15
// (docs/host-time.md). Frameworks, optimizers and checkpointing write it as HostWork.

#include <cstddef>

#include "schedules/planner/host/host.h"

namespace foreshard {

/// Microseconds of the reference CPU; `name`: a string literal.
inline void spend_host(Host& host, double us, const char* name) {
  host.program().host_work(static_cast<std::int64_t>(us * 1000),
                           host.program().intern_literal(name));
}

/// What DTensors add to calls on n plain ones (cold caches included: docs/host-time.md,
/// optimizer 1.2).
inline double dtensor_adamw_us(std::size_t n, OptimizerKind kind) {
  const double count = static_cast<double>(n);
  switch (kind) {
    case OptimizerKind::kAdamWFused:
      return 1.2 * (30 + 12.7 * count);
    case OptimizerKind::kAdamWForLoop:
      return 1.2 * 76 * count;
    default:
      return 1.2 * (60 + 12.5 * count);
  }
}
inline double dtensor_clip_us(std::size_t n) { return 1.2 * (270 + 6.5 * static_cast<double>(n)); }
inline double dtensor_zero_grad_us(std::size_t n) { return 1.6 * static_cast<double>(n); }

/// Non-reentrant checkpointing of one module, above its operators: setting up the saved-tensor
/// hooks, then their answers and the second call.
inline constexpr double kCheckpointForwardUs = 200, kCheckpointBackwardUs = 400;
/// Per operator: every call of a block, views too, goes through the policy's dispatch mode (20 us
/// each of about 48 calls forward, 25 in recomputation). A compiler traces it away.
inline constexpr double kSelectiveForwardUs = 950, kSelectiveBackwardUs = 1200;
/// DistributedDataParallel's autograd hook of one parameter.
inline constexpr double kDdpHookUs = 7.5;

}  // namespace foreshard
