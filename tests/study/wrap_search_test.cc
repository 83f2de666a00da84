// The search against every grouping of small models, and the model of a step against times worked
// out by hand.

#include "study/wrap_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace foreshard {
namespace {

/// Blocks with costs from a generator; links take 3 us and 1 ps a byte.
WrapCosts random_costs(std::uint32_t seed, int blocks, bool reshard) {
  std::mt19937 random(seed);
  const auto pick = [&](std::int64_t least, std::int64_t most) {
    return least +
           static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(most - least + 1));
  };
  WrapCosts c;
  for (int b = 0; b < blocks; ++b) {
    c.forward.push_back(microseconds(pick(1, 40)));
    c.backward.push_back(microseconds(pick(2, 80)));
    c.gather.push_back(Bytes(pick(1, 30) * 1'000'000));
    c.reduce.push_back(Bytes(pick(1, 60) * 1'000'000));
  }
  const auto line = [](Bytes n) { return microseconds(3) + Time(n.value); };
  c.gather_time = c.reduce_time = line;
  c.embedding = microseconds(pick(0, 30));
  c.head = microseconds(pick(0, 30));
  c.rest = microseconds(5);
  c.reshard = reshard;
  return c;
}

std::vector<std::int64_t> sizes_of(std::uint32_t cuts, int blocks) {
  std::vector<std::int64_t> sizes{1};
  for (int b = 1; b < blocks; ++b) {
    if ((cuts >> (b - 1) & 1U) != 0)
      sizes.push_back(1);
    else
      ++sizes.back();
  }
  return sizes;
}

TEST(WrapSearch, EqualsExhaustiveSearchOnSmallModels) {
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    const int blocks = 1 + static_cast<int>(seed % 10);
    const WrapCosts costs = random_costs(seed, blocks, seed % 3 != 0);
    std::vector<Grouping> all;
    for (std::uint32_t cuts = 0; cuts < 1U << (blocks - 1); ++cuts)
      all.push_back(evaluate_grouping(costs, sizes_of(cuts, blocks)));
    const auto fastest = [&](Bytes limit) {
      Time best(INT64_MAX);
      for (const Grouping& g : all) {
        if (g.buffers <= limit) best = std::min(best, g.step);
      }
      return best;
    };
    EXPECT_EQ(best_grouping(costs).step, fastest(Bytes(INT64_MAX))) << "seed " << seed;
    for (std::size_t i = 0; i < all.size(); i += 7) {  // limits that occur
      const Grouping found = best_grouping(costs, all[i].buffers);
      ASSERT_FALSE(found.sizes.empty());
      EXPECT_EQ(found.step, fastest(all[i].buffers))
          << "seed " << seed << ", limit " << all[i].buffers.value;
      EXPECT_LE(found.buffers, all[i].buffers);
    }
  }
}

TEST(WrapSearch, StepOfTwoGroupsByHand) {
  // Two blocks: forward 10 and 20 us, backward 30 and 40 us, gathers 8 and 16 us, reductions 6 and
  // 12 us, no latency.
  WrapCosts c;
  c.forward = {microseconds(10), microseconds(20)};
  c.backward = {microseconds(30), microseconds(40)};
  c.gather = {Bytes(8'000'000), Bytes(16'000'000)};
  c.reduce = {Bytes(6'000'000), Bytes(12'000'000)};
  c.gather_time = c.reduce_time = [](Bytes n) { return Time(n.value); };
  c.head = microseconds(4);
  // Two units: 8 (gather 1) + max(10, 16) + 20 + max(4, 16) + max(40, 8) + max(30, 12) + 6 = 136
  // us.
  EXPECT_EQ(evaluate_grouping(c, {1, 1}).step, microseconds(136));
  // One unit: 24 + 30 + max(4, 24) + 70 + 18 = 166 us.
  EXPECT_EQ(evaluate_grouping(c, {2}).step, microseconds(166));
  // Kept gathered: no gathers in backward: 8 + 16 + 20 + 4 + 40 + 30 + 6 = 124 us.
  c.reshard = false;
  EXPECT_EQ(evaluate_grouping(c, {1, 1}).step, microseconds(124));
}

TEST(WrapSearch, FrontFallsInMemoryAndRisesInTime) {
  const std::vector<Grouping> front = grouping_front(random_costs(7, 24, true));
  ASSERT_GE(front.size(), 2U);
  for (std::size_t i = 1; i < front.size(); ++i) {
    EXPECT_LT(front[i].buffers, front[i - 1].buffers);
    EXPECT_GT(front[i].step, front[i - 1].step);
  }
}

TEST(WrapSearch, EightyBlocksAreSearched) {
  const WrapCosts costs = random_costs(11, 80, true);
  const Grouping best = best_grouping(costs);
  for (int k = 1; k <= 80; ++k) {  // no regular grouping may be better
    std::vector<std::int64_t> sizes;
    for (int left = 80; left > 0; left -= k) sizes.push_back(std::min(k, left));
    EXPECT_LE(best.step, evaluate_grouping(costs, sizes).step) << k;
  }
}

}  // namespace
}  // namespace foreshard
