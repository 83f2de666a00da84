#pragma once

// GPUs of one type differ for good: a step of equal shares waits for the slowest of them.

#include <cstdint>
#include <vector>

#include "hwprofiles/profile.h"
#include "sim/cost/parameters.h"

namespace foreshard {

/// Standard deviation of the speed of GPUs of this type.
double speed_spread_of(const GpuProfile& gpu, const CostParameters& parameters);

/// Factor on kernel times of `n` GPUs whose speeds have standard deviation `sigma`, against those
/// of 8, at the slowest of them: 1 + sigma (E[max of n] - E[max of 8]).
double slowest_gpu_factor(double sigma, std::int64_t n);

/// Kernel times of each of a typical set of `n` such GPUs relative to the slowest one's, which is
/// 1: expected order statistics of the normal distribution (Blom's approximation, scaled so that
/// the largest is exact), in a fixed shuffled order.
std::vector<double> typical_gpus(double sigma, std::int64_t n);

}  // namespace foreshard
