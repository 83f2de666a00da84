// Wrapping and flat parameters of FSDP1 against values of the rules (F1-G-*, F1-P-*, F1-B-7),
// measured on PyTorch or worked out by hand from its source.

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "models/module_tree.h"
#include "schedules/planner/frameworks/fsdp1_error.h"
#include "schedules/planner/frameworks/fsdp1_wrap.h"

namespace foreshard::fsdp1 {
namespace {

using Names = std::vector<std::string>;
using Policy = Fsdp1Options::Policy;

/// Embedding 50 x 8 (400), blocks {q 64, o 64, f1 256, f2 256, norm 16} = 656 each in a ModuleList,
/// head 400: the model of F1-G-4's measured table.
struct Toy {
  ModelBuilder builder{"Model"};
  std::vector<ModuleId> blocks;

  explicit Toy(int count) {
    builder.embedding(builder.root(), "emb", 50, 8);
    const ModuleId list = builder.add_module(builder.root(), "layers", "ModuleList");
    for (int i = 0; i < count; ++i) {
      const ModuleId b = builder.add_module(list, std::to_string(i), "Block");
      builder.linear(b, "q", 8, 8, false);
      builder.linear(b, "o", 8, 8, false);
      builder.linear(b, "f1", 8, 32, false);
      builder.linear(b, "f2", 32, 8, false);
      builder.layer_norm(b, "norm", 8, true, 1e-5);
      blocks.push_back(b);
    }
    builder.linear(builder.root(), "head", 8, 50, false);
  }
  void tie_head() {
    const ModuleId emb = builder.model().find_module("emb");
    builder.tie_parameter(builder.model().find_module("head"), "weight",
                          builder.model().at(emb).parameters[0].id);
  }
  const Model& model() { return builder.model(); }
};

ParallelConfig job(Policy policy, std::int64_t shard = 4) {
  ParallelConfig c;
  c.framework = FrameworkKind::kFsdp1;
  c.shard = shard;
  c.precision = MixedPrecision{};
  c.fsdp1.policy = policy;
  return c;
}

Names names(const std::vector<Unit>& units) {
  Names all;
  for (const Unit& u : units)
    if (!u.name.empty()) all.push_back(u.name);
  return all;
}

std::int64_t wrapped_numel(const std::vector<Unit>& units) {
  std::int64_t n = 0;
  for (const Unit& u : units) n += !u.name.empty() && u.flat ? u.flat->numel : 0;
  return n;
}

struct SizeRow {
  std::int64_t min;
  Names units;
  std::int64_t numel;
};

TEST(Fsdp1Wrap, SizePolicyMeasuredTable) {
  Toy toy(3);
  const Names linears{"emb",         "layers.0.f1", "layers.0.f2", "layers.1.f1",
                      "layers.1.f2", "layers.2.f1", "layers.2.f2", "head"};
  const SizeRow rows[] = {
      {100,
       {"emb", "layers.0", "layers.0.f1", "layers.0.f2", "layers.1", "layers.1.f1", "layers.1.f2",
        "layers.2", "layers.2.f1", "layers.2.f2", "head"},
       2768},
      {200, linears, 2336},
      {300, {"emb", "layers.0", "layers.1", "layers.2", "head"}, 2768},
      {656, {"layers.0", "layers.1", "layers.2"}, 1968},
      {657, {}, 0},
      {700, {}, 0},
      {2000, {}, 0},
  };
  for (const SizeRow& row : rows) {
    ParallelConfig c = job(Policy::kSize);
    c.fsdp1.min_elements = row.min;
    const auto units = wrap_units(toy.model(), c);
    EXPECT_EQ(names(units), row.units) << row.min;
    EXPECT_EQ(wrapped_numel(units), row.numel) << row.min;
  }
}

/// A block that is a forced leaf is never asked, so it stays with the root; under mixed precision
/// the policy is joined with the one for BatchNorm, which descends everywhere: f1 and f2 (256) are
/// wrapped, then what is left of the block (144).
TEST(Fsdp1Wrap, MixedPrecisionMakesSizePolicyDescendIntoForcedLeaves) {
  Toy toy(1);
  ParallelConfig c = job(Policy::kSize);
  c.fsdp1.min_elements = 100;
  c.fsdp1.force_leaf_classes = Names{"Block"};
  EXPECT_EQ(names(wrap_units(toy.model(), c)), (Names{"emb", "head"}));
  c.precision.param = DType::kBFloat16;
  EXPECT_EQ(names(wrap_units(toy.model(), c)),
            (Names{"emb", "layers.0", "layers.0.f1", "layers.0.f2", "head"}));
}

TEST(Fsdp1Wrap, BatchNormIsAUnitInFullPrecisionUnderMixedPrecision) {
  Toy toy(1);
  const ModuleId bn = toy.builder.add_module(toy.blocks[0], "bn", "BatchNorm1d");
  toy.builder.add_parameter(bn, "weight", {8});
  ParallelConfig c = job(Policy::kModuleClass);
  c.fsdp1.policy_names = {"Block"};
  EXPECT_EQ(names(wrap_units(toy.model(), c)), Names{"layers.0"});
  EXPECT_TRUE(full_precision_modules(toy.model(), c).empty());
  c.precision = {DType::kBFloat16, DType::kFloat32, {}, {}, false};
  const auto units = wrap_units(toy.model(), c);
  ASSERT_EQ(names(units), (Names{"layers.0", "layers.0.bn"}));
  EXPECT_EQ(units[1].flat->forward_dtype, DType::kBFloat16);
  EXPECT_EQ(units[1].flat->reduce_dtype, DType::kFloat32);
  EXPECT_EQ(units[2].flat->forward_dtype, DType::kFloat32);
  EXPECT_FALSE(units[2].mixed);
  EXPECT_EQ(full_precision_modules(toy.model(), c), std::vector<ModuleId>{bn});
  // Wrapped by hand there is no policy, hence no isolation.
  c.fsdp1.policy = Policy::kManual;
  c.fsdp1.policy_names = {"layers.0"};
  EXPECT_EQ(names(wrap_units(toy.model(), c)), Names{"layers.0"});
}

/// A precision of its own is a whole MixedPrecision: it does not inherit the job's flags. None:
/// full precision.
TEST(Fsdp1Wrap, PrecisionOfOneUnitIsWhole) {
  Toy toy(3);
  ParallelConfig c = job(Policy::kCustom);
  c.precision = {DType::kBFloat16, DType::kFloat32, {}, {}, false};
  c.fsdp1.keep_low_precision_grads = c.fsdp1.cast_forward_inputs = true;
  c.fsdp1.custom["layers.0"] = {};
  c.fsdp1.custom["layers.1"].precision = MixedPrecision{DType::kFloat16, {}, {}, {}, false};
  c.fsdp1.custom["layers.2"].precision = MixedPrecision{};
  const auto units = wrap_units(toy.model(), c);
  ASSERT_EQ(units.size(), 4U);
  EXPECT_TRUE(units[1].keep_low_precision_grads && units[1].cast_forward_inputs);
  EXPECT_EQ(units[1].flat->reduce_dtype, DType::kFloat32);
  EXPECT_FALSE(units[2].keep_low_precision_grads || units[2].cast_forward_inputs);
  EXPECT_EQ(units[2].flat->forward_dtype, DType::kFloat16);
  EXPECT_EQ(units[2].flat->reduce_dtype,
            DType::kFloat16);  // As the parameters, where it is not given.
  EXPECT_FALSE(units[3].mixed);
  EXPECT_EQ(units[3].flat->forward_dtype, DType::kFloat32);
}

/// Tied children: counted in both (F1-G-4). Without original parameters both units store it, with
/// them only the first (F1-G-6).
TEST(Fsdp1Wrap, ParametersTiedAcrossUnits) {
  Toy toy(1);
  toy.tie_head();
  ParallelConfig c = job(Policy::kLambda);
  c.fsdp1.policy_names = {"emb"};
  auto units = wrap_units(toy.model(), c);
  EXPECT_EQ(units[0].flat->numel, 656 + 400);
  EXPECT_EQ(units[1].flat->numel, 400);
  c.fsdp1.use_orig_params = true;
  units = wrap_units(toy.model(), c);
  EXPECT_EQ(units[0].flat->numel, 656);
  EXPECT_EQ(units[1].flat->numel, 400);
}

TEST(Fsdp1Wrap, TiedInsideAUnitIsStoredAtItsFirstPlace) {
  Toy toy(1);
  toy.tie_head();
  ParallelConfig c = job(Policy::kModuleClass);
  c.fsdp1.policy_names = {"Block"};
  const auto units = wrap_units(toy.model(), c);
  ASSERT_EQ(units[0].flat->entries.size(), 1U);
  const FlatEntry& e = units[0].flat->entries[0];
  EXPECT_EQ(e.name, "emb.weight");
  ASSERT_EQ(e.places.size(), 2U);
  EXPECT_EQ(toy.model().at(e.places[1].first).name, "head");
}

TEST(Fsdp1Wrap, FrozenBesideTrainableNeedsOriginalParameters) {
  Toy toy(1);
  toy.builder.model().parameters[1].trainable = false;  // layers.0.q.weight
  ParallelConfig c = job(Policy::kModuleClass);
  c.fsdp1.policy_names = {"Block"};
  try {
    wrap_units(toy.model(), c);
    FAIL();
  } catch (const Fsdp1Error& e) {
    EXPECT_EQ(e.refusal(), Refusal::kValueError);
  }
  c.fsdp1.use_orig_params = true;
  EXPECT_TRUE(wrap_units(toy.model(), c)[1].flat->trainable);
}

TEST(Fsdp1Wrap, IgnoredModulesLeaveSizesToo) {
  Toy toy(1);
  ParallelConfig c = job(Policy::kSize);
  c.fsdp1.min_elements = 656;
  c.fsdp1.ignored_modules = {"layers.0.f1"};
  EXPECT_TRUE(names(wrap_units(toy.model(), c)).empty());
  c.fsdp1.min_elements = 400;  // The block has 656 - 256 left.
  const auto units = wrap_units(toy.model(), c);
  EXPECT_EQ(names(units), (Names{"emb", "layers.0", "head"}));
  EXPECT_EQ(units[2].flat->numel, 400);
}

/// The class policies take their classes from ParallelConfig::wrap if none are given.
TEST(Fsdp1Wrap, ClassesFromTheGeneralOption) {
  Toy toy(2);
  toy.builder.model().roles.blocks = toy.blocks;
  ParallelConfig c = job(Policy::kModuleClass);
  EXPECT_EQ(names(wrap_units(toy.model(), c)), (Names{"layers.0", "layers.1"}));
  c.wrap.kind = WrapPolicy::Kind::kModules;
  c.wrap.modules = {"Embedding"};
  EXPECT_EQ(names(wrap_units(toy.model(), c)), Names{"emb"});
  c.wrap.modules = {"Embeding"};
  EXPECT_THROW(wrap_units(toy.model(), c), InputError);
}

TEST(Fsdp1Wrap, UnknownNamesAreAnsweredWithTheNearest) {
  Toy toy(1);
  ParallelConfig c = job(Policy::kManual);
  c.fsdp1.policy_names = {"layers.00"};
  try {
    wrap_units(toy.model(), c);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("layers.0"), std::string::npos);
  }
}

/// W = 1, or a hybrid job with one rank a shard group: NO_SHARD, divided by all ranks (F1-W1).
TEST(Fsdp1Wrap, OneRankIsNotSharded) {
  Toy toy(1);
  ParallelConfig c = job(Policy::kAlways, 1);
  EXPECT_EQ(wrap_units(toy.model(), c)[0].strategy, Strategy::kNoShard);
  c.replicate = 2;
  c.fsdp1.strategy = Strategy::kHybrid;
  const auto units = wrap_units(toy.model(), c);
  EXPECT_EQ(units[0].strategy, Strategy::kNoShard);
  EXPECT_EQ(units[0].predivide * units[0].postdivide, 2);
}

/// Measured: f need not divide n.
TEST(Fsdp1Wrap, DivideFactors) {
  const double rows[][3] = {{1, 1, 1},   {2, 2, 1},  {3, 2, 1.5}, {5, 2, 2.5}, {6, 4, 1.5},
                            {7, 2, 3.5}, {8, 4, 2},  {12, 4, 3},  {16, 4, 4},  {32, 8, 4},
                            {48, 8, 6},  {64, 8, 8}, {128, 16, 8}};
  for (const auto& row : rows) {
    const auto [pre, post] = divide_factors(static_cast<std::int64_t>(row[0]));
    EXPECT_EQ(pre, row[1]) << row[0];
    EXPECT_EQ(post, row[2]) << row[0];
  }
}

/// A module with parameters of the given sizes, in one unit.
FlatLayout layout_of(const std::vector<std::int64_t>& sizes, std::int64_t align, std::int64_t ranks,
                     bool sharded = true) {
  ModelBuilder b{"Model"};
  std::vector<FlatSource> sources;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::string name = "p" + std::to_string(i);
    sources.push_back({b.add_parameter(b.root(), name, {sizes[i]}), b.root(), name, name});
  }
  return lay_out(b.model(), sources, align, ranks, sharded);
}

/// 5 + 9 + 1 = 15 over 8 ranks: 2 each, the last one holds 1.
TEST(Fsdp1Flat, ShardsWithoutAlignment) {
  const FlatLayout f = layout_of({5, 9, 1}, 0, 8);
  EXPECT_EQ(f.numel, 15);
  EXPECT_EQ(f.shard, 2);
  EXPECT_EQ(f.padded, 16);
  const auto part =
      f.part_of(f.entries[1], 2);  // Rank 2 holds [4, 6): one element of p0, one of p1.
  EXPECT_EQ(part.first, 0);
  EXPECT_EQ(part.offset, 1);
  EXPECT_EQ(part.numel, 1);
  EXPECT_EQ(f.part_of(f.entries[0], 3).numel, 0);
}

/// Three elements over 8 ranks: one each; ranks 3 to 7 hold padding only.
TEST(Fsdp1Flat, RanksMayHoldPaddingOnly) {
  const FlatLayout f = layout_of({1, 2}, 0, 8);
  EXPECT_EQ(f.shard, 1);
  EXPECT_EQ(f.padded, 8);
  for (std::int64_t r = 3; r < 8; ++r) EXPECT_EQ(f.part_of(f.entries[1], r).numel, 0);
}

/// Padding before a parameter, to 16 bytes; after the last one only to a multiple of the ranks.
TEST(Fsdp1Flat, AlignsEachParameter) {
  const FlatLayout f = layout_of({1, 2}, 4, 8);  // fp32: 1, 3 padding, 2, 2 padding
  EXPECT_EQ(f.sizes, (std::vector<std::int64_t>{1, 3, 2, 2}));
  EXPECT_EQ(f.entries[2].offset, 4);
  EXPECT_EQ(f.numel, 8);
  EXPECT_EQ(f.padded, 8);
  const FlatLayout half = layout_of({1, 2}, 8, 8);  // bf16: 1, 7 padding, 2, 6 padding
  EXPECT_EQ(half.sizes, (std::vector<std::int64_t>{1, 7, 2, 6}));
  const FlatLayout whole = layout_of({1, 2}, 4, 8, false);
  EXPECT_EQ(whole.shard, 8);
  EXPECT_EQ(whole.part_of(whole.entries[2], 5).numel, 2);
}

}  // namespace
}  // namespace foreshard::fsdp1
