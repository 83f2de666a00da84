#pragma once

// ZeRO-1 of public trainers other than DeepSpeed (ZeroOptions::Style).

#include <memory>

#include "schedules/planner/frameworks/framework.h"

namespace foreshard::zero {

/// InternEvo: whole tensors belong to the ranks of groups of `shard`; gradients are all-reduced
/// over the job in buckets, each owner broadcasts its tensors after the step, one by one.
std::unique_ptr<Framework> make_tensor_owners(const ParallelConfig& config);
/// nanotron: each parameter is cut flat over all ranks; fp32 accumulators are reduce-scattered in
/// buckets of DDP's size, the 16-bit parameters come back in one all-gather.
std::unique_ptr<Framework> make_flat_shards(const ParallelConfig& config);

}  // namespace foreshard::zero
