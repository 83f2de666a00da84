#pragma once

// A cluster whose nodes are of several machines.

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/cost_model.h"

namespace foreshard {

/// Ranks of one machine among the others.
struct MachineRanks {
  std::int64_t first = 0, last = 0;
  std::unique_ptr<CostModel> cost;  ///< Of a cluster of that machine alone.
};

/// Kernels, copies, host and memory are those of `usual` (Variation says how ranks differ); a
/// collective takes what the slowest machine among its members asks, and of that machine's links.
std::unique_ptr<CostModel> make_mixed_cost(std::unique_ptr<CostModel> usual,
                                           std::vector<MachineRanks> others);

}  // namespace foreshard
