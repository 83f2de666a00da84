#include "sim/distribution.h"

#include <algorithm>

#include "core/error.h"
#include "core/parallel.h"

namespace foreshard {
namespace {

/// Nearest-rank quantile of ascending times.
Time quantile(const std::vector<Time>& sorted, int percent) {
  const std::size_t n = sorted.size();
  const std::size_t rank = (n * static_cast<std::size_t>(percent) + 99) / 100;
  return sorted[std::max<std::size_t>(rank, 1) - 1];
}

}  // namespace

StepDistribution simulate_distribution(const Schedule& schedule, const CostModel& cost,
                                       const SimulationOptions& options, int count, int threads,
                                       const CostModel* equal) {
  if (count < 1)
    throw InputError(Issue{"options", "samples", "is " + std::to_string(count), "at least 1"});
  SimulationOptions fast = options;
  fast.detail = Detail::kTimesOnly;
  fast.memory = MemoryDetail::kNone;
  StepDistribution d;
  d.samples.resize(static_cast<std::size_t>(count));
  const auto sample = [&](std::size_t i) {
    SimulationOptions mine = fast;
    mine.variation.seed += i;
    d.samples[i] = simulate(schedule, cost, mine).step_time;
  };
  parallel_for(d.samples.size(), sample, static_cast<std::size_t>(threads));

  std::vector<Time> sorted = d.samples;
  std::sort(sorted.begin(), sorted.end());
  d.p10 = quantile(sorted, 10);
  d.median = quantile(sorted, 50);
  d.p90 = quantile(sorted, 90);
  Time sum(0);
  for (const Time t : sorted) sum += t;
  d.mean = sum / count;
  fast.variation = Variation{};
  d.without_variation = simulate(schedule, equal ? *equal : cost, fast).step_time;
  if (d.without_variation.value > 0) d.cost = d.mean / d.without_variation - 1;
  return d;
}

}  // namespace foreshard
