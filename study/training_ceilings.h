#pragma once

// The few numbers of the cost model that training runs inform: ceilings that kernels reach in
// sustained training, which no kernel test shows. `calibrate runs` fits them, `score runs` varies
// them to leave laboratories out.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hwprofiles/profile.h"
#include "study/fit_factors.h"

namespace foreshard {

/// GPUs of one chip and about one power limit.
struct ChipClass {
  GpuGeneration generation;
  double compute_capability;
  double least_power, most_power;  ///< W.
};

/// One number to fit: a factor on efficiencies of some GPU types, 1 at the prior.
struct TrainingCeiling {
  std::string_view name;
  std::vector<ChipClass> chips;
  std::vector<std::string_view>
      efficiencies;  ///< Keys of GpuProfile::efficiency that the factor multiplies.
  double sd;         ///< Of the logarithm of the factor, before any run is seen.
  /// How step time depends on the factor: -1 for rates (time as 1 / factor), 1 for costs.
  int sense;
  std::string_view meaning;  ///< What it stands for physically, and where prior and sd come from.
};

std::span<const TrainingCeiling> training_ceilings();
/// Of the factors, in the same order.
std::span<const FactorPrior> ceiling_priors();

/// Logarithms of the factors, one for each ceiling.
using CeilingFactors = std::vector<double>;

/// True if the ceiling concerns this GPU.
bool concerns(const TrainingCeiling& ceiling, const GpuProfile& gpu);

/// Sets the efficiencies of `gpu` to prior times factor. Facts without a prior count as their own
/// prior.
void apply_ceilings(const CeilingFactors& factors, GpuProfile& gpu);

}  // namespace foreshard
