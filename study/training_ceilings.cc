#include "study/training_ceilings.h"

#include <algorithm>
#include <cmath>

#include "hwprofiles/calibration.h"

namespace foreshard {
namespace {

// Parts on a mezzanine board; PCIe cards run at 250 to 400 W, superchips share theirs with a CPU.
const ChipClass kGa100{GpuGeneration::kAmpere, 8.0, 400, 500},
    kGh100{GpuGeneration::kHopper, 9.0, 500, 700},
    kGh100At500{GpuGeneration::kHopper, 9.0, 500, 699};
const std::vector<ChipClass> kA100{kGa100}, kH100{kGh100}, kH100At500{kGh100At500},
    kBoth{kGa100, kGh100};

}  // namespace

std::span<const TrainingCeiling> training_ceilings() {
  static const std::vector<TrainingCeiling> all = {
      {"matmul, A100",
       kA100,
       {"matmul_training"},
       0.05,
       -1,
       "share of the dense peak that large matrix products sustain in training; prior: kernel "
       "tests on random data"},
      {"matmul, H100",
       kH100,
       {"matmul_training"},
       0.08,
       -1,
       "as for A100; prior: between short bursts and the power limit of 700 W"},
      {"matmul, H100 at 500 W",
       kH100At500,
       {"matmul_training"},
       0.06,
       -1,
       "the 500 W part against the 700 W one; prior (500 / 700)^0.4"},
      {"memory-bound kernels",
       kBoth,
       {"memory_bound"},
       0.08,
       -1,
       "share of memory bandwidth that element-wise kernels reach; prior: streams, 0.79 to 0.95"},
      {"flash-attention 1, A100",
       kA100,
       {"attention_fa1_forward_ratio", "attention_fa1_backward_ratio"},
       0.15,
       -1,
       "rate of first-generation flash attention against the second; prior: published reviews, 25 "
       "to 40 % of peak"},
      {"flash-attention 1, H100",
       kH100,
       {"attention_fa1_forward_ratio", "attention_fa1_backward_ratio"},
       0.15,
       -1,
       "as for A100"},
      {"interference",
       kBoth,
       {"overlap_slowdown"},
       0.47,
       1,
       "how much longer kernels take while a collective runs; prior: the SMs that NCCL's channels "
       "hold"},
      {"spread of GPUs",
       kBoth,
       {"speed_spread"},
       0.59,
       1,
       "standard deviation of the speed of GPUs of one type: a step waits for the slowest"},
  };
  return all;
}

std::span<const FactorPrior> ceiling_priors() {
  static const std::vector<FactorPrior> all = [] {
    std::vector<FactorPrior> priors;
    for (const TrainingCeiling& c : training_ceilings()) priors.push_back({c.sd, c.sense});
    return priors;
  }();
  return all;
}

bool concerns(const TrainingCeiling& ceiling, const GpuProfile& gpu) {
  return std::any_of(ceiling.chips.begin(), ceiling.chips.end(), [&](const ChipClass& c) {
    const double power = gpu.power_limit.value_or(0);
    return gpu.generation == c.generation &&
           gpu.compute_capability.value_or(0) == c.compute_capability && power >= c.least_power &&
           power <= c.most_power;
  });
}

void apply_ceilings(const CeilingFactors& factors, GpuProfile& gpu) {
  forget_calibration(gpu);
  const auto ceilings = training_ceilings();
  for (std::size_t i = 0; i < ceilings.size() && i < factors.size(); ++i) {
    for (const std::string_view name : ceilings[i].efficiencies) {
      const std::string key(name);
      const auto origin = gpu.efficiency_of.find(key);
      const bool its_own = origin == gpu.efficiency_of.end();
      if (!concerns(ceilings[i], its_own ? gpu : load_gpu(origin->second))) continue;
      const auto fact = gpu.efficiency.find(key);
      if (fact != gpu.efficiency.end()) fact->second.value *= std::exp(factors[i]);
    }
  }
}

}  // namespace foreshard
