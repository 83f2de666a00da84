#include "sim/mixed_cost.h"

#include <algorithm>
#include <array>
#include <utility>

namespace foreshard {
namespace {

class MixedCostModel final : public CostModel {
 public:
  MixedCostModel(std::unique_ptr<CostModel> usual, std::vector<MachineRanks> others)
      : usual_(std::move(usual)), others_(std::move(others)) {}

  LaunchCost launch(const RankProgram& program, const Launch& launch) const override {
    return usual_->launch(program, launch);
  }
  TransferCost copy(const RankProgram& program, const Copy& copy) const override {
    return usual_->copy(program, copy);
  }
  HostCosts host() const override { return usual_->host(); }
  BytesPerSecond capacity(Link link) const override { return usual_->capacity(link); }
  DeviceMemory memory() const override { return usual_->memory(); }
  Time step_overhead() const override { return usual_->step_overhead(); }
  std::int64_t node_of(std::int64_t rank) const override { return usual_->node_of(rank); }

  std::int64_t machine_of(std::int64_t rank) const override {
    for (std::size_t i = 0; i < others_.size(); ++i)
      if (rank >= others_[i].first && rank <= others_[i].last)
        return static_cast<std::int64_t>(i) + 1;
    return 0;
  }

  TransferCost collective(const Collective& c, std::span<const std::int64_t> ranks) const override {
    std::vector<bool> asked(others_.size() + 1, false);
    TransferCost slowest;
    for (const std::int64_t rank : ranks) {
      const auto machine = static_cast<std::size_t>(machine_of(rank));
      if (asked[machine]) continue;
      asked[machine] = true;
      TransferCost cost =
          machine == 0 ? usual_->collective(c, ranks) : of_other(others_[machine - 1], c, ranks);
      if (cost.device > slowest.device) slowest = cost;
    }
    return slowest;
  }

 private:
  /// Its traffic as a share of its own links, which stand as `usual`'s: a flow that fills a slower
  /// NIC leaves nothing of it to others.
  TransferCost of_other(const MachineRanks& other, const Collective& c,
                        std::span<const std::int64_t> ranks) const {
    TransferCost cost = other.cost->collective(c, ranks);
    for (int l = 0; l < kLinkCount; ++l) {
      const auto link = static_cast<Link>(l);
      const double there = other.cost->capacity(link).per_second;
      if (there > 0)
        cost.weight[static_cast<std::size_t>(l)] *= usual_->capacity(link).per_second / there;
    }
    return cost;
  }

  std::unique_ptr<CostModel> usual_;
  std::vector<MachineRanks> others_;
};

}  // namespace

std::unique_ptr<CostModel> make_mixed_cost(std::unique_ptr<CostModel> usual,
                                           std::vector<MachineRanks> others) {
  return std::make_unique<MixedCostModel>(std::move(usual), std::move(others));
}

}  // namespace foreshard
