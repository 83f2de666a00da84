#include "sim/sharing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace foreshard {
namespace {

struct Problem {
  std::vector<double> capacity;
  struct Flow {
    double limit;
    std::vector<ResourceUse> uses;
  };
  std::vector<Flow> flows;
};

std::vector<double> solve(SharingSolver& solver, const Problem& p) {
  solver.begin(p.capacity);
  for (const auto& f : p.flows) solver.add_flow(f.limit, f.uses);
  const auto rates = solver.solve();
  return {rates.begin(), rates.end()};
}

/// The oracle: raises all open rates together by the largest common amount, everything computed
/// anew in each round.
std::vector<double> slow_twin(const Problem& p) {
  std::vector<double> rate(p.flows.size(), 0);
  std::vector<bool> open(p.flows.size(), true);
  for (;;) {
    double grow = 1e300;
    for (std::size_t f = 0; f < rate.size(); ++f) {
      if (open[f]) grow = std::min(grow, p.flows[f].limit - rate[f]);
    }
    for (std::size_t r = 0; r < p.capacity.size(); ++r) {
      double used = 0, weight = 0;
      for (std::size_t f = 0; f < rate.size(); ++f) {
        for (const ResourceUse& u : p.flows[f].uses) {
          if (u.resource != r) continue;
          used += u.weight * rate[f];
          if (open[f]) weight += u.weight;
        }
      }
      if (weight > 0) grow = std::min(grow, std::max(0.0, p.capacity[r] - used) / weight);
    }
    if (grow > 1e299) return rate;
    for (std::size_t f = 0; f < rate.size(); ++f) {
      if (open[f]) rate[f] += grow;
    }
    for (std::size_t f = 0; f < rate.size(); ++f) {
      if (open[f] && rate[f] >= p.flows[f].limit * (1 - 1e-12)) open[f] = false;
    }
    for (std::size_t r = 0; r < p.capacity.size(); ++r) {
      double used = 0;
      for (std::size_t f = 0; f < rate.size(); ++f) {
        for (const ResourceUse& u : p.flows[f].uses)
          used += u.resource == r ? u.weight * rate[f] : 0;
      }
      if (used < p.capacity[r] * (1 - 1e-12)) continue;
      for (std::size_t f = 0; f < rate.size(); ++f) {
        for (const ResourceUse& u : p.flows[f].uses) {
          if (u.resource == r) open[f] = false;
        }
      }
    }
  }
}

TEST(Sharing, EqualFlowsGetEqualParts) {
  SharingSolver solver;
  const Problem p{{90}, {{100, {{0, 1}}}, {100, {{0, 1}}}, {100, {{0, 1}}}}};
  EXPECT_EQ(solve(solver, p), (std::vector<double>{30, 30, 30}));
}

TEST(Sharing, WhatALimitedFlowLeavesGoesToTheOthers) {
  SharingSolver solver;
  const Problem p{{90}, {{10, {{0, 1}}}, {100, {{0, 1}}}, {100, {{0, 1}}}}};
  EXPECT_EQ(solve(solver, p), (std::vector<double>{10, 40, 40}));
}

// Flow a uses both links (10 and 100), b only the wide one: a is held at 5 by c on the narrow link,
// b gets 95.
TEST(Sharing, ABottleneckElsewhereFreesCapacity) {
  SharingSolver solver;
  const Problem p{{10, 100}, {{1000, {{0, 1}, {1, 1}}}, {1000, {{1, 1}}}, {1000, {{0, 1}}}}};
  EXPECT_EQ(solve(solver, p), (std::vector<double>{5, 95, 5}));
}

// Weights: each unit of flow a takes two units of the link: equal rates x with 2x + x = 90.
TEST(Sharing, WeightsCount) {
  SharingSolver solver;
  const Problem p{{90}, {{1000, {{0, 2}}}, {1000, {{0, 1}}}}};
  EXPECT_EQ(solve(solver, p), (std::vector<double>{30, 30}));
}

TEST(Sharing, FlowsWithoutResourcesRunAtTheirLimit) {
  SharingSolver solver;
  EXPECT_EQ(solve(solver, {{}, {{7, {}}}}), (std::vector<double>{7}));
}

TEST(Sharing, AgreesWithTheSlowTwin) {
  std::mt19937_64 random(20240607);
  SharingSolver solver;
  const auto pick = [&](int n) {
    return static_cast<int>(random() % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 2000; ++round) {
    Problem p;
    const int resources = 1 + pick(6), flows = 1 + pick(9);
    for (int r = 0; r < resources; ++r) p.capacity.push_back(pick(8) == 0 ? 0 : 1 + pick(1000));
    for (int f = 0; f < flows; ++f) {
      Problem::Flow flow{static_cast<double>(1 + pick(600)), {}};
      for (int r = 0; r < resources; ++r) {
        if (pick(2)) flow.uses.push_back({static_cast<std::uint32_t>(r), 0.25 * (1 + pick(8))});
      }
      p.flows.push_back(flow);
    }
    const std::vector<double> fast = solve(solver, p), slow = slow_twin(p);
    for (std::size_t f = 0; f < fast.size(); ++f) {
      ASSERT_NEAR(fast[f], slow[f], 1e-7 * (1 + slow[f])) << "round " << round << " flow " << f;
    }
  }
}

}  // namespace
}  // namespace foreshard
