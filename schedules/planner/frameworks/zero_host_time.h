#pragma once

// Host time of DeepSpeed's hooks on the reference CPU, in us of a real step (cold caches):
// DeepSpeed 0.19.8 timed function by function beside FSDP2 in one process (docs/host-time.md).
// Offloaded optimizers and leaf modules were not timed; they are priced the same.

#include <cstddef>

#include "schedules/planner/host/host_time.h"

namespace foreshard::zero {

/// A call, and what each of the parameters (or tensors) that it works on adds.
struct HookCost {
  double fixed_us, each_us;
  double of(std::size_t n) const { return fixed_us + each_us * static_cast<double>(n); }
};

/// engine.forward() and engine.backward(), each micro-batch, whatever the stage.
inline constexpr double kEngineForwardUs = 250, kEngineBackwardUs = 600;

// Stage 3, each module: before and after its forward and its backward.
inline constexpr HookCost kBeforeForward{46, 3}, kAfterForward{16, 2};
inline constexpr HookCost kBeforeBackward{29, 3.5}, kAfterBackward{21, 5};
/// The autograd function around each tensor that goes into or out of a module: apply() binds its
/// arguments in Python. All tensors, also those that take no gradient.
inline constexpr HookCost kApply{5, 14};
/// A parameter that waits for its gather; one that is let go (free_param).
inline constexpr double kWaitUs = 10, kReleaseUs = 37;
/// An all-gather of n parameters, then (several at once) its result put together: for each
/// parameter a view of each rank's piece.
inline constexpr HookCost kGather{80, 3.5};
inline constexpr HookCost kPutTogether{0, 30};
inline constexpr double kPieceUs = 1.9;
/// AccumulateGrad's hook: the gradient goes into the bucket.
inline constexpr double kGradient3Us = 50;
/// A bucket: flattened rank by rank, reduced, and cut again.
inline constexpr HookCost kBucket3{140, 25};
inline constexpr double kRankPieceUs = 0.45;
/// engine.step() of n parameters of which p are persistent (gathered again at its end).
inline constexpr HookCost kStep3{660, 15}, kPersistent{0, 23};

// Stages 1 and 2.
inline constexpr double kGradient12Us = 27;
inline constexpr HookCost kBucket12{120, 7.5};
inline constexpr double kStep12Us = 850;

inline void spend(Host& host, double us) { spend_host(host, us, "DeepSpeed hooks"); }

}  // namespace foreshard::zero
