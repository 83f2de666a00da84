#include "sim/cost/gpu_spread.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <utility>

#include "sim/cost/kernel_cost.h"

namespace foreshard {
namespace {

/// z with a share `p` of the standard normal distribution below it.
double normal_quantile(double p) {
  double low = -10, high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

}  // namespace

double speed_spread_of(const GpuProfile& gpu, const CostParameters& parameters) {
  return gpu.efficiency_or("speed_spread", parameters.step.slowest_gpu_sigma);
}

double slowest_gpu_factor(double sigma, std::int64_t n) {
  static const double of_eight = expected_maximum(8);
  return sigma == 0 ? 1 : std::max(0.0, 1 + sigma * (expected_maximum(n) - of_eight));
}

std::vector<double> typical_gpus(double sigma, std::int64_t n) {
  const auto blom = [&](std::int64_t rank) {
    return normal_quantile((static_cast<double>(rank) - 0.375) / (static_cast<double>(n) + 0.25));
  };
  const double slowest = slowest_gpu_factor(sigma, n);
  const double exact = expected_maximum(n), scale = n > 1 ? exact / blom(n) : 0;
  std::vector<double> out;
  for (std::int64_t rank = 1; rank <= n; ++rank)
    out.push_back(1 + sigma * (scale * blom(rank) - exact) / slowest);
  std::mt19937 random;  // Its own seed, the same for all: which GPU is slow is not what varies.
  for (std::size_t i = out.size(); i > 1; --i) std::swap(out[i - 1], out[random() % i]);
  return out;
}

}  // namespace foreshard
