// The op graph on a step small enough to do by hand.

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"
#include "models/op_graph.h"

namespace foreshard {
namespace {

OpNode node(const char* op, const char* module, OpPass pass, std::int64_t flops = 0) {
  OpNode n;
  n.op = op;
  n.module = module;
  n.pass = pass;
  n.flops = Flops(flops);
  return n;
}

/// x -> a -> b -> c, then backward of b reads a's result and backward of c reads b's; a and b in
/// block "m", c outside.
struct Step {
  OpGraph g;
  std::uint32_t x, a, b, c, gc, gb;
  Step() {
    gb = g.add_node(node("gb", "m", OpPass::kBackward));
    x = g.add_node(node("input", "x", OpPass::kInput));
    a = g.add_node(node("a", "m.one", OpPass::kForward, 10));
    b = g.add_node(node("b", "m", OpPass::kForward, 100));
    c = g.add_node(node("c", "mm", OpPass::kForward, 1000));
    gc = g.add_node(node("gc", "mm", OpPass::kBackward));
    g.add_edge({x, a, 0, Bytes(4)});
    g.add_edge({a, b, 1, Bytes(8)});
    g.add_edge({b, c, 2, Bytes(16)});
    g.add_edge({c, gc, 3, Bytes(32)});
    g.add_edge({b, gc, 2, Bytes(16)});
    g.add_edge({gc, gb, 4, Bytes(64)});
    g.add_edge({a, gb, 1, Bytes(8)});
  }
};

TEST(OpGraph, TopologicalOrderPutsWritersFirst) {
  const Step s;
  const auto order = s.g.topological_order();
  ASSERT_EQ(order.size(), 6U);
  std::vector<std::size_t> at(6);
  for (std::size_t i = 0; i < order.size(); ++i) at[order[i]] = i;
  for (const OpEdge& e : s.g.edges()) EXPECT_LT(at[e.from], at[e.to]);
}

TEST(OpGraph, CirclesAreOurBug) {
  Step s;
  s.g.add_edge({s.gb, s.x, 9, Bytes(1)});
  EXPECT_THROW(s.g.topological_order(), InternalError);
}

TEST(OpGraph, WhatACheckpointKeepsAndRunsAgain) {
  const Step s;
  EXPECT_EQ(s.g.saved_by(s.a).value, 8);
  EXPECT_EQ(s.g.saved_by(s.b).value, 16);
  EXPECT_EQ(s.g.saved_by(s.x).value, 0);
  const CheckpointFacts block = s.g.checkpoint("m");
  EXPECT_EQ(block.saved.value, 24);
  EXPECT_EQ(block.kept.value, 4);
  EXPECT_EQ(block.recomputed.value, 110);
  // Only a's result is saved of m.one: b need not run again, and "m" is no prefix of "mm" as a
  // module.
  const CheckpointFacts part = s.g.checkpoint("m.one");
  EXPECT_EQ(part.saved.value, 8);
  EXPECT_EQ(part.recomputed.value, 10);
}

TEST(OpGraph, Written) {
  const Step s;
  const Json json = s.g.json();
  EXPECT_EQ(json["nodes"].size(), 6U);
  EXPECT_EQ(json["edges"].size(), 7U);
  const std::string dot = s.g.dot();
  EXPECT_NE(dot.find("digraph"), std::string::npos);
  EXPECT_NE(dot.find("style=bold"), std::string::npos);
}

}  // namespace
}  // namespace foreshard
