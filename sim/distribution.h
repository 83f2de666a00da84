#pragma once

// What random differences between ranks do to the step: many simulations with different seeds.

#include <vector>

#include "sim/simulator.h"

namespace foreshard {

struct StepDistribution {
  std::vector<Time> samples;  ///< In order of the seeds.
  Time p10, median, p90, mean;
  Time without_variation;  ///< The same schedule with equal ranks.
  /// What the tail costs: mean / without_variation - 1.
  double cost = 0;
};

/// `equal`: what equal ranks cost, if not `cost`. `count` simulations with seeds
/// options.variation.seed, +1, ...; on up to `threads` threads. The result does not depend on the
/// number of threads. `count` at least 1.
StepDistribution simulate_distribution(const Schedule& schedule, const CostModel& cost,
                                       const SimulationOptions& options, int count, int threads,
                                       const CostModel* equal = nullptr);

}  // namespace foreshard
