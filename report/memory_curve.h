#pragma once

// Memory over time by category: what a trace's totals are made of.

#include <string>
#include <vector>

#include "schedules/trace.h"

namespace foreshard {

/// Stacked bytes at each change of memory on one rank, in time order.
struct MemoryCurve {
  std::vector<std::string> categories;  ///< Those that ever hold memory, largest at the peak first.
  struct Point {
    Time at;
    Bytes allocated, reserved;
    std::vector<std::int64_t> bytes;  ///< As requested, one for each category.
  };
  std::vector<Point> points;
  std::size_t peak = 0;  ///< Index of the point with most allocated.
  std::string peak_at;   ///< "backward of layers.3"
};

/// The curve of one rank and step of a trace of `schedule`. Empty if the trace has no memory
/// samples for it.
MemoryCurve memory_curve(const Schedule& schedule, const Trace& trace, std::int32_t rank,
                         std::int32_t step);

}  // namespace foreshard
