// FSDP2 rules with values worked out by hand or quoted from the recordings; named by rule id.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "models/plain/plain_models.h"
#include "schedules/planner/frameworks/fsdp2.h"
#include "schedules/planner/frameworks/fsdp2_error.h"
#include "schedules/planner/planner.h"

namespace foreshard::fsdp2 {
namespace {

// torch.chunk of 9 rows over 4 ranks gives 3, 3, 3 (measured); the last rank holds nothing.
TEST(F2_P_1, RowsOfUnevenShards) {
  std::vector<std::int64_t> rows;
  for (std::int64_t rank = 0; rank < 4; ++rank) rows.push_back(rows_of(9, 4, rank));
  EXPECT_EQ(rows, (std::vector<std::int64_t>{3, 3, 3, 0}));
  EXPECT_EQ(rows_of(3, 8, 2),
            1);  // a vector shorter than the group costs one element on each rank that has one
  EXPECT_EQ(rows_of(3, 8, 3), 0);
}

// [9, 4] over 4 ranks: 3 rows each, padded to 12 rows: 12 elements a rank, 48 in all.
TEST(F2_P_2, PaddedSizes) {
  std::vector<Group> groups;
  Meshes meshes(4, 1, 3, groups);
  ShardedParameter p;
  p.shape = {9, 4};
  cut(p, meshes.whole(), 0);
  EXPECT_EQ(p.padded_local_numel(), 12);
  EXPECT_EQ(p.padded_numel(), 48);
  EXPECT_EQ(p.local_shape, (Shape{0, 4}));
}

TEST(F2_P_3, OtherDimensionsMustDivideEvenly) {
  std::vector<Group> groups;
  Meshes meshes(4, 1, 0, groups);
  ShardedParameter p;
  p.shape = {9, 9};
  EXPECT_THROW(cut(p, meshes.whole(), 1), Fsdp2Error);
  EXPECT_THROW(cut(p, meshes.whole(), 2), Fsdp2Error);
  p.shape = {9, 8};
  cut(p, meshes.whole(), -1);
  EXPECT_EQ(p.shard_dim, 1);
  EXPECT_EQ(p.local_shape, (Shape{9, 2}));
}

// fp16: (pre, post) as recorded for n = 2, 3, 4, 6, 7, 8, 16, 32, 64 (corrections, rule F2-RS-8).
TEST(F2_RS_8, DivisionOfFp16IsSplit) {
  struct Row {
    std::int64_t n;
    double pre, post;
  };
  for (const Row& r : {Row{2, 2, 1}, Row{3, 2, 1.5}, Row{4, 2, 2}, Row{6, 4, 1.5}, Row{7, 2, 3.5},
                       Row{8, 4, 2}, Row{16, 4, 4}, Row{32, 8, 4}, Row{64, 8, 8}}) {
    const Division d = division_of(r.n, 1, DType::kFloat16, std::nullopt, false);
    EXPECT_EQ(d.pre, r.pre) << r.n;
    EXPECT_EQ(d.post, r.post) << r.n;
    EXPECT_EQ(d.scatter, ReduceOp::kSum);
  }
}

TEST(F2_RS_8, OtherDtypesDivideInTheCollective) {
  const Division mean = division_of(8, 2, DType::kBFloat16, std::nullopt, false);
  EXPECT_EQ(mean.scatter, ReduceOp::kAverage);
  EXPECT_EQ(mean.all, ReduceOp::kAverage);
  EXPECT_FALSE(mean.pre || mean.post);
  EXPECT_EQ(division_of(1, 1, DType::kFloat32, std::nullopt, false).scatter, ReduceOp::kSum);
  const Division own = division_of(8, 2, DType::kFloat32, 8.0,
                                   false);  // factor equals the shard group: replicas are summed
  EXPECT_EQ(own.scatter, ReduceOp::kAverage);
  EXPECT_EQ(own.all, ReduceOp::kSum);
  const Division premul = division_of(8, 1, DType::kFloat32, 4.0, false);
  EXPECT_EQ(premul.scatter, ReduceOp::kPreMulSum);
  EXPECT_DOUBLE_EQ(premul.premul, 0.25);
  const Division sum = division_of(8, 2, DType::kFloat32, std::nullopt, true);
  EXPECT_EQ(sum.scatter, ReduceOp::kSum);
  EXPECT_EQ(sum.post, 16.0);
}

/// The toy of the worked example: 3 Llama blocks, D = 256, F = 512, V = 1002, four ranks.
Model toy(bool tied = false) {
  PlainModelOptions o;
  o.layers = 3;
  o.hidden = 256;
  o.heads = 4;
  o.ffn = 512;
  o.vocabulary = 1002;
  o.max_sequence = 128;
  o.tied = tied;
  return plain_llama(o);
}

ParallelConfig toy_config() {
  ParallelConfig c;
  c.shard = 4;
  c.sequence = 128;
  return c;
}

std::vector<std::string> unit_names(const Schedule& s) {
  std::vector<std::string> names;
  for (const ShardUnit& u : s.programs[0].units) names.push_back(u.name);
  return names;
}

// Block: 4 * 256^2 + 3 * 512 * 256 + 2 * 256 = 655,872 elements, divisible by 4. Root: 2 * 1002 *
// 256 + 256 = 513,280; rows 1002 are padded to 1004: 514,304 (spec, worked example of FSDP2).
TEST(F2_P_2, UnitsOfTheWorkedExample) {
  ParallelConfig c = toy_config();
  c.wrap.root_split = false;
  PlanOptions options;
  options.ranks = {0};
  options.executable = false;
  const Schedule s = plan(toy(), c, options);
  ASSERT_EQ(s.programs[0].units.size(), 4U);
  const ShardUnit &block = s.programs[0].units[0], &root = s.programs[0].units[3];
  EXPECT_EQ(block.numel.value, 655'872);
  EXPECT_EQ(block.padded_numel.value, 655'872);
  EXPECT_EQ(block.shard_numel.value, 163'968);
  EXPECT_EQ(root.numel.value, 513'280);
  EXPECT_EQ(root.padded_numel.value, 514'304);
  EXPECT_EQ(root.shard_numel.value, 128'576);
}

// torchtitan's recipe: embedding, each block, [norm, head] together, then the root; tied weights in
// one unit.
TEST(F2_G_5, CallsOfTheUsualRecipe) {
  const Model model = toy(), tied = toy(true);
  const auto calls = wrap_calls(model, toy_config());
  ASSERT_EQ(calls.size(), 6U);
  EXPECT_EQ(calls[0].modules.size(), 1U);
  EXPECT_EQ(calls[4].modules.size(), 2U);
  EXPECT_EQ(calls[4].reshard.kind, Reshard::Kind::kNo);
  EXPECT_EQ(calls[5].modules, std::vector<std::string>{""});
  const auto tied_calls = wrap_calls(tied, toy_config());
  ASSERT_EQ(tied_calls.size(), 5U);
  EXPECT_EQ(tied_calls[0].modules.size(), 3U);
}

// A root whose parameters are all owned below has no group: 5 units, none called "(root)".
TEST(F2_G_1, RootWithoutParametersHasNoGroup) {
  PlanOptions options;
  options.ranks = {0};
  options.executable = false;
  const auto names = unit_names(plan(toy(), toy_config(), options));
  EXPECT_EQ(names.size(), 5U);
  EXPECT_EQ(std::count(names.begin(), names.end(), "(root)"), 0);
}

TEST(F2_F_3, ReshardGroupMustDivideTheShardGroup) {
  ParallelConfig c = toy_config();
  c.reshard = Reshard::to_group(3);
  EXPECT_THROW(plan(toy(), c), InputError);
}

std::int64_t count_collectives(const Schedule& s, CollectiveKind kind) {
  const RankProgram& p = s.programs[0];
  std::int64_t n = 0;
  for (std::uint32_t i = p.steps.back().begin; i < p.steps.back().end; ++i) {
    const Instruction& op = p.instructions[i];
    n += op.kind == InstructionKind::kCollective && p.collectives[op.id].kind == kind ? 1 : 0;
  }
  return n;
}

// Blocks and root: each block is gathered twice (forward and backward), the root once; every unit
// is reduced once.
TEST(F2_F_4, RootIsNotGatheredAgainByDefault) {
  ParallelConfig c = toy_config();
  c.wrap.root_split = false;
  c.clip = false;
  PlanOptions options;
  options.ranks = {0};
  options.executable = false;
  EXPECT_EQ(count_collectives(plan(toy(), c, options), CollectiveKind::kAllGather), 3 * 2 + 1);
  EXPECT_EQ(count_collectives(plan(toy(), c, options), CollectiveKind::kReduceScatter), 4);
  c.reshard = Reshard::no();
  EXPECT_EQ(count_collectives(plan(toy(), c, options), CollectiveKind::kAllGather), 4);
}

// With reduce_dtype unset gradients are reduced in the parameters' own dtype, whatever the compute
// dtype is.
TEST(F2_MP_1, ReduceDtypeFollowsTheOriginalDtype) {
  ParallelConfig c = toy_config();
  c.precision.reduce.reset();
  c.clip = false;
  PlanOptions options;
  options.ranks = {0};
  options.executable = false;
  const Schedule s = plan(toy(), c, options);
  for (const Collective& x : s.programs[0].collectives) {
    EXPECT_EQ(x.dtype, x.kind == CollectiveKind::kAllGather ? DType::kBFloat16 : DType::kFloat32);
  }
}

// One fp32 norm for each of the 3 * 9 + 3 = 30 parameters travels, not a scalar.
TEST(F2_O_1, ClippingReducesAVectorOfNorms) {
  PlanOptions options;
  options.ranks = {0};
  options.executable = false;
  const Schedule s = plan(toy(), toy_config(), options);
  const RankProgram& p = s.programs[0];
  const auto norm =
      std::find_if(p.collectives.begin(), p.collectives.end(),
                   [](const Collective& c) { return c.kind == CollectiveKind::kAllReduce; });
  ASSERT_NE(norm, p.collectives.end());
  EXPECT_EQ(norm->bytes.value, 120);
  EXPECT_EQ(norm->op, ReduceOp::kSum);
}

// HSDP: one all-reduce for each reduce-scatter, over the replicas, of the shard's bytes.
TEST(F2_AR_1, EveryReducedUnitIsAllReduced) {
  ParallelConfig c = toy_config();
  c.shard = 2;
  c.replicate = 2;
  c.clip = false;
  PlanOptions options;
  options.ranks = {0};
  options.executable = false;
  const Schedule s = plan(toy(), c, options);
  EXPECT_EQ(count_collectives(s, CollectiveKind::kAllReduce), 5);
  EXPECT_EQ(count_collectives(s, CollectiveKind::kReduceScatter), 5);
}

}  // namespace
}  // namespace foreshard::fsdp2
