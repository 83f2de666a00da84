#pragma once

// Which gradients share a bucket (rules D-2 to D-5).

#include <cstdint>
#include <vector>

#include "schedules/planner/config.h"
#include "schedules/planner/host/tensor.h"

namespace foreshard::ddp {

using Indices = std::vector<std::size_t>;

struct Assignment {
  std::vector<Indices> buckets;
  std::vector<std::int64_t> limits;  ///< Bytes, one for each bucket.
};

/// compute_bucket_assignment_by_size (reducer.cpp; D-2): for each dtype a bucket closes when it
/// reaches its limit; the last limit repeats. With `order` (indices in the order of arrival) closed
/// buckets come first, then the open ones, the dtype seen last first (iteration order of
/// libstdc++'s hash table); without it buckets are sorted by their smallest index.
Assignment assign_buckets(const std::vector<SymTensor>& tensors,
                          const std::vector<std::int64_t>& limits, const Indices* order = nullptr);

/// Limits of the first assignment in bytes: one bucket for everything unless parameters may be
/// unused or a list is given.
std::vector<std::int64_t> first_limits(const DdpOptions& options);
/// Limits when buckets are rebuilt in the order of arrival.
std::vector<std::int64_t> rebuild_limits(const DdpOptions& options);
/// bucket_bytes_cap: the (largest) bucket size that the user asked for.
std::int64_t bucket_cap_bytes(const DdpOptions& options);

}  // namespace foreshard::ddp
