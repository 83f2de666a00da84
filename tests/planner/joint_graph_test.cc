// The partitioner's cut: minimal by exhaustive search, and each rule by hand
// (torch/_functorch/partitioners.py of PyTorch 2.15).

#include "schedules/planner/joint_graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace foreshard {
namespace {

void connect(JointGraph& g, std::uint32_t from, std::uint32_t to) { g[from].readers.push_back(to); }

JointValue kernel(std::int64_t bytes) {
  JointValue v;
  v.bytes = v.read_bytes = bytes;
  v.generated = v.may_run_again = true;
  return v;
}

JointValue product(std::int64_t bytes) {
  JointValue v;
  v.bytes = v.read_bytes = bytes;
  return v;
}

JointValue argument(std::int64_t bytes) {
  JointValue v;
  v.bytes = bytes;
  v.argument = true;
  return v;
}

/// Backward can have what it reads: kept, or made again of what it can have.
bool enough(const JointGraph& g, std::uint32_t kept) {
  std::vector<bool> there(g.size());
  for (std::size_t v = 0; v < g.size(); ++v) {
    bool again = g[v].may_run_again && !g[v].argument;
    for (std::size_t s = 0; s < v; ++s)
      for (const std::uint32_t r : g[s].readers) again = again && (r != v || there[s]);
    there[v] = (kept >> v & 1U) != 0 || again;
    if (g[v].read_backward && !there[v]) return false;
  }
  return true;
}

/// Bytes times 1.1 for each kernel to backward, twice where only generated kernels read it.
std::vector<std::int64_t> costs(const JointGraph& g) {
  std::vector<double> steps(g.size(), 100);
  std::vector<std::int64_t> cost(g.size());
  for (std::size_t v = g.size(); v-- > 0;) {
    if (g[v].read_backward) steps[v] = 1;
    for (const std::uint32_t r : g[v].readers) steps[v] = std::min(steps[v], steps[r] + 1);
    cost[v] = static_cast<std::int64_t>(static_cast<double>(g[v].bytes) * std::pow(1.1, steps[v]));
    if (!g[v].argument) cost[v] *= 2;
  }
  return cost;
}

TEST(JointGraph, CutIsMinimal) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    JointGraph g;
    for (std::uint32_t v = 0; v < 10; ++v) {
      const std::int64_t bytes = 100 + static_cast<std::int64_t>(random() % 900);
      g.push_back(v < 2 ? argument(bytes) : kernel(bytes));
      g[v].read_bytes = 0;
      g[v].read_backward = random() % 3 == 0;
      if (v >= 2) g[v].may_run_again = random() % 4 != 0;
      for (std::uint32_t s = 0; s < v && v >= 2; ++s)
        if (random() % 3 == 0) connect(g, s, v);
    }
    const std::vector<std::int64_t> cost = costs(g);
    const auto sum = [&](std::uint32_t kept) {
      std::int64_t n = 0;
      for (std::size_t v = 0; v < g.size(); ++v) n += (kept >> v & 1U) != 0 ? cost[v] : 0;
      return n;
    };
    std::int64_t least = INT64_MAX;
    for (std::uint32_t kept = 0; kept < 1U << g.size(); ++kept)
      if (enough(g, kept)) least = std::min(least, sum(kept));
    std::uint32_t chosen = 0;
    const std::vector<bool> saved = saved_values(g);
    for (std::size_t v = 0; v < g.size(); ++v) chosen |= saved[v] ? 1U << v : 0U;
    EXPECT_TRUE(enough(g, chosen));
    EXPECT_EQ(sum(chosen), least) << "round " << round;
  }
}

// A value of 100 bytes made of an argument of 100 (or of 300) by one generated kernel.
TEST(JointGraph, GeneratedKernelsRunAgainWhereThatSaves) {
  JointGraph g = {argument(100), kernel(100)};
  connect(g, 0, 1);
  g[1].read_backward = true;
  EXPECT_EQ(saved_values(g), (std::vector<bool>{true, false}));  // 121 against 220.
  g[0].bytes = g[1].read_bytes = 300;
  EXPECT_EQ(saved_values(g), (std::vector<bool>{false, true}));  // 363 against 220.
}

TEST(JointGraph, WhatBackwardNeedsInMemoryIsSaved) {
  JointGraph g = {argument(100), kernel(100)};
  connect(g, 0, 1);
  g[0].read_backward = g[1].read_backward = true;
  EXPECT_EQ(saved_values(g), (std::vector<bool>{true, false}));
  g[1].read_whole = true;
  EXPECT_EQ(saved_values(g), (std::vector<bool>{true, true}));
}

// A result of less than a quarter of its arguments is saved.
TEST(JointGraph, ReductionsAreNotMadeAgain) {
  JointGraph g = {argument(400), kernel(100)};
  connect(g, 0, 1);
  g[1].read_bytes = 400;
  g[0].read_backward = g[1].read_backward = true;
  EXPECT_EQ(saved_values(g), (std::vector<bool>{true, false}));
  g[0].bytes = g[1].read_bytes = 404;
  EXPECT_EQ(saved_values(g), (std::vector<bool>{true, true}));
}

// A residual stream: value 1 is read at once by 2 and, behind the product 3 of it, by the sum 4;
// the sum is not fused with what stands before the product.
TEST(JointGraph, SumsFarFromTheirArgumentsAreNotMadeAgain) {
  JointGraph g = {product(100), kernel(100), kernel(100), product(100), kernel(100)};
  connect(g, 0, 1);
  connect(g, 1, 2);
  connect(g, 1, 4);
  connect(g, 2, 3);
  connect(g, 3, 4);
  g[0].read_backward = g[3].read_backward = g[4].read_backward = true;
  EXPECT_EQ(saved_values(g), (std::vector<bool>{true, false, false, true, true}));
  g[3].generated = g[3].may_run_again = true;  // Everything is one fused kernel.
  EXPECT_EQ(saved_values(g), (std::vector<bool>{true, false, false, false, false}));
}

}  // namespace
}  // namespace foreshard
