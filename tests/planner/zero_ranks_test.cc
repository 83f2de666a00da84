// ZeRO 1 and 2 with an offloaded optimizer: each rank copies its own part of the gradients to host
// memory while the others wait for it in the next bucket's collective (stage_1_and_2.py,
// copy_grads_in_partition), so that the copies of all ranks follow one another.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

/// Matrices of 64 x 64 (4 a layer) and 64 x 128 (3), norms of 64 (2), embedding and head of 96 x
/// 64, the last norm: 41,088 elements a layer and 12,352.
Model layers(std::int64_t n) {
  PlainModelOptions o;
  o.layers = n;
  o.hidden = 64;
  o.heads = 4;
  o.kv_heads = 4;
  o.ffn = 128;
  o.vocabulary = 96;
  o.max_sequence = 16;
  return plain_llama(o);
}

Schedule planned(const Model& model, FrameworkKind framework, std::int64_t ranks,
                 std::int64_t bucket, OffloadKind offload = OffloadKind::kOptimizer) {
  ParallelConfig c;
  c.framework = framework;
  c.shard = ranks;
  c.sequence = 8;
  c.offload = offload;
  c.zero.reduce_bucket_size = bucket;
  PlanOptions options;
  options.executable = false;
  options.steps = 3;
  return plan(model, c, options);
}

/// Elements of fp32 gradients that a program's last step copies to the host after each of its
/// all-reduces: larger than a norm or a flag.
std::vector<std::int64_t> copied(const RankProgram& p) {
  std::vector<std::int64_t> after(1);
  for (std::uint32_t i = p.steps.back().begin; i < p.steps.back().end; ++i) {
    const Instruction& n = p.instructions[i];
    if (n.kind == InstructionKind::kCollective &&
        p.collectives[n.id].kind == CollectiveKind::kAllReduce)
      after.push_back(0);
    if (n.kind != InstructionKind::kCopy) continue;
    const Copy& c = p.copies[n.id];
    if (c.direction == CopyDirection::kDeviceToHost && c.bytes.value > 8)
      after.back() += c.bytes.value / 4;
  }
  return after;
}

std::int64_t sum(const std::vector<std::int64_t>& v) {
  std::int64_t n = 0;
  for (const std::int64_t x : v) n += x;
  return n;
}

/// What the step waits for: after each all-reduce the longest copy of any rank.
std::int64_t chain(const Schedule& s) {
  std::vector<std::int64_t> longest;
  for (const RankProgram& p : s.programs) {
    const std::vector<std::int64_t> c = copied(p);
    longest.resize(std::max(longest.size(), c.size()));
    for (std::size_t i = 0; i < c.size(); ++i) longest[i] = std::max(longest[i], c[i]);
  }
  return sum(longest);
}

// 94,528 elements on 8 ranks of round_up(94,528, 16) / 8 = 11,816: seven full parts, and 4 short of
// one.
TEST(ZeroRanks, EachRankOfASmallJobCopiesItsOwnPart) {
  for (const FrameworkKind stage : {FrameworkKind::kZero1, FrameworkKind::kZero2}) {
    const Schedule s = planned(layers(2), stage, 8, 20'000);
    ASSERT_EQ(s.programs.size(), 8u);
    ASSERT_EQ(s.program_of_rank.size(), 8u);
    for (std::uint32_t r = 0; r < 8; ++r) {
      EXPECT_EQ(s.program_of_rank[r], r);
      EXPECT_EQ(sum(copied(s.programs[r])), r < 7 ? 11'816 : 11'816 - (8 * 11'816 - 94'528));
    }
  }
}

// Buckets of one matrix each: 834,112 elements (20 layers) on 512 ranks are parts of
// round_up(834,112, 1,024) / 512 = 1,630, and each of 142 matrices of 4,096 elements and more holds
// one whole part at least, for which all wait; the copies of 41 norms of 64 elements come in
// between.
TEST(ZeroRanks, OfManyRanksThoseForWhichAllWaitCopy) {
  const std::int64_t matrices = 142 * 1'630, norms = 41 * 64;
  for (const FrameworkKind stage : {FrameworkKind::kZero1, FrameworkKind::kZero2}) {
    const Schedule s = planned(layers(20), stage, 512, 1);
    EXPECT_LE(s.programs.size(), 66u);
    EXPECT_GE(chain(s), matrices);
    EXPECT_LE(chain(s), (matrices + norms) * 1.05);
    EXPECT_EQ(sum(copied(s.programs[s.program_of_rank[0]])), 1'630);
    ASSERT_FALSE(s.not_modelled.empty());
    EXPECT_NE(s.not_modelled[0].find("stand for their neighbours"), std::string::npos);
  }
}

// One bucket of everything: all ranks copy at once, a 512th of the gradients each.
TEST(ZeroRanks, OwnersOfOneBucketCopySideBySide) {
  const Schedule s = planned(layers(20), FrameworkKind::kZero2, 512, 10'000'000);
  EXPECT_EQ(chain(s), 1'630);
  EXPECT_LE(s.programs.size(), 3u);
}

// Without offload nothing waits for copies: large jobs run rank 0's program, but for the rank that
// keeps most gradients.
TEST(ZeroRanks, OnTheDeviceTheyAreAlike) {
  const Schedule s = planned(layers(20), FrameworkKind::kZero2, 512, 1, OffloadKind::kNone);
  EXPECT_LE(s.programs.size(), 2u);
  EXPECT_TRUE(s.not_modelled.empty());
}

}  // namespace
}  // namespace foreshard
