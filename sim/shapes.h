#pragma once

// What of a program does not depend on costs or options; looked up once for all simulations of it.

#include <cstdint>
#include <vector>

#include "schedules/schedule.h"

namespace foreshard::sim {

/// Launches and collectives of equal cost have one shape.
struct ProgramShapes {
  std::vector<std::uint32_t> launch_shape;  ///< By launch.
  std::vector<std::uint32_t> launches;      ///< By shape: the first launch of it,
  std::vector<std::uint32_t> launch_count;  ///< and how many have it.
  std::vector<std::uint32_t> collective_shape;
  std::vector<std::uint32_t> collectives;
  /// No block is recorded for another stream: what the allocator does follows from the order of
  /// requests alone, whatever the time.
  bool timeless_memory = true;
};

ProgramShapes find_shapes(const RankProgram& program);

}  // namespace foreshard::sim
