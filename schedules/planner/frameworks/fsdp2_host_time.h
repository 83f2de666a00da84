#pragma once

// Host time of FSDP2's hooks on the reference CPU (docs/host-time.md): 1.3 (cold caches) times the
// measured 311 + 12.4 P us forward and 406 + 23.4 P us backward of a unit with P parameters, split
// as the timed parts are.

#include <cstdint>

#include "schedules/planner/frameworks/fsdp2_group.h"
#include "schedules/planner/host/host.h"

namespace foreshard::fsdp2 {

/// Constant and per-parameter part, in us of a tight loop.
struct HookCost {
  double fixed_us, each_us;
};
inline constexpr HookCost kPreForwardCost{92, 0.4}, kGatherCost{108, 3.6}, kCopyOutCost{69, 6.9},
    kPostForwardCost{42, 1.5};
inline constexpr HookCost kPreBackwardCost{52, 1.0}, kPostBackwardCost{177, 11.9};
inline constexpr double kColdCaches = 1.3;

inline void spend(Host& host, const HookCost& cost, const ParamGroup& group) {
  const double us =
      kColdCaches * (cost.fixed_us + cost.each_us * static_cast<double>(group.parameters.size()));
  host.program().host_work(static_cast<std::int64_t>(us * 1000),
                           host.program().intern_literal("sharding hooks"));
}

}  // namespace foreshard::fsdp2
