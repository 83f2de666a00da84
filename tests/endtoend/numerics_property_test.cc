// Property: neither sharding nor its options change what a model learns. Random toy jobs of every
// framework run on CPU ranks; losses and gradient norms are those of the same model, unsharded, on
// one rank with the whole batch. The reference shares kernels and data with the runs, no code of
// any framework. Seeds are printed with each failure.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "models/plain/plain_models.h"
#include "tests/endtoend/dice.h"
#include "tests/toy_training.h"

namespace foreshard {
namespace {

constexpr int kFsdp2Cases = 110, kFsdp1Cases = 60, kDdpCases = 60, kZeroCases = 60;
/// The last step repeats what follows: with a static graph of DDP from the fourth on.
constexpr std::int64_t kSteps = 4;
/// fp32 sums in another order, through four steps of an optimizer.
constexpr double kLossTolerance = 1e-4, kNormTolerance = 1e-3;

using fixture::Dice;

struct Job {
  Model model;
  ParallelConfig config;
  bool skips = false, repeats = false, tied = false;
  std::string options;  ///< For the message of a failure.

  void note(const std::string& text) { options += " " + text; }
};

/// Calls of block `index` in the root's program, taken out or doubled.
void change_calls(Model& model, std::int64_t index, bool twice) {
  std::vector<Statement>& program = model.modules[0].program;
  const ModuleId block = model.roles.blocks[static_cast<std::size_t>(index)];
  const auto at = std::find_if(program.begin(), program.end(), [block](const Statement& s) {
    return s.function == Function::kCall && s.child == block;
  });
  ASSERT_NE(at, program.end());
  if (twice)
    program.insert(at, Statement(*at));
  else
    program.erase(at);
}

void make_model(Dice& dice, Job& job) {
  PlainModelOptions o;
  o.layers = 2 + dice.below(3);
  o.hidden = dice.of({20, 24, 40});
  o.heads = 2;
  o.ffn = dice.of({28, 37});
  o.vocabulary = dice.of({31, 45, 61});
  o.max_sequence = 16;
  o.tied = job.tied = dice.one_in(5);
  const bool gpt2 = dice.one_in(3);
  job.model = gpt2 ? plain_gpt2(o) : plain_llama(o);
  if (dice.one_in(4)) {
    for (ParameterDef& p : job.model.parameters) p.trainable = !dice.one_in(4);
    job.model.parameters.back().trainable = true;
    job.note("frozen");
  }
  if (dice.one_in(5)) {
    job.skips = true;
    change_calls(job.model, dice.below(o.layers), false);
    job.note("skipped");
  } else if (dice.one_in(6)) {
    job.repeats = true;
    change_calls(job.model, dice.below(o.layers), true);
    job.note("twice");
  }
  if (job.tied) job.note("tied");
}

void set_training(Dice& dice, Job& job) {
  ParallelConfig& c = job.config;
  c.sequence = 8;
  c.micro_batch = 1 + dice.below(2);
  c.precision = MixedPrecision{};
  c.accumulate = dice.of({1, 1, 2, 3});
  c.sync_each_micro_batch = dice.one_in(2);
  c.optimizer =
      dice.of({OptimizerKind::kAdamWFused, OptimizerKind::kAdamWForeach, OptimizerKind::kSgd});
  c.clip = !dice.one_in(3);
  if (dice.one_in(4)) c.checkpoint = CheckpointKind::kFull, job.note("checkpoint");
  if (c.accumulate > 1)
    job.note(c.sync_each_micro_batch ? "accumulate" : "accumulate without sync");
}

/// Explicit calls: single blocks, groups of them, attention apart from its block, embedding and
/// head, the root last.
std::vector<WrapCall> random_calls(Dice& dice, Job& job) {
  const Model& m = job.model;
  std::vector<WrapCall> calls;
  const auto reshard = [&] {
    const std::int64_t shard = job.config.shard;
    if (shard == 4 && dice.one_in(4)) return Reshard::to_group(2);
    return dice.of({Reshard{}, Reshard::yes(), Reshard::no()});
  };
  const auto add = [&](std::vector<std::string> modules) {
    WrapCall call;
    call.as_list = modules.size() > 1;
    call.modules = std::move(modules);
    call.reshard = reshard();
    calls.push_back(std::move(call));
  };
  for (std::size_t i = 0; i < m.roles.blocks.size(); ++i) {
    const Module& block = m.at(m.roles.blocks[i]);
    if (dice.one_in(3)) {
      add({m.at(block.children[static_cast<std::size_t>(dice.below(2))].id).name});
      job.note("nested");
    }
    const bool grouped =
        i + 1 < m.roles.blocks.size() && !job.skips && !job.repeats && dice.one_in(4);
    if (grouped) {
      add({block.name, m.at(m.roles.blocks[i + 1]).name});
      job.note("grouped");
      ++i;
    } else if (!dice.one_in(6)) {
      add({block.name});
    }
  }
  add({""});
  return calls;
}

void set_fsdp2(Dice& dice, Job& job) {
  ParallelConfig& c = job.config;
  c.framework = FrameworkKind::kFsdp2;
  c.shard = dice.of({1, 2, 3, 4});
  if (c.shard <= 2 && dice.one_in(2)) c.replicate = 2, job.note("hybrid");
  if (dice.one_in(2)) {
    c.wrap.kind = WrapPolicy::Kind::kCalls;
    c.calls = random_calls(dice, job);
  } else {
    c.wrap.root_split = dice.one_in(2);
    if (dice.one_in(3)) c.wrap.kind = WrapPolicy::Kind::kEveryK, c.wrap.every = 2;
    if (c.shard == 4 && dice.one_in(3))
      c.reshard = Reshard::to_group(2), job.note("reshard to 2");
    else
      c.reshard = dice.of({Reshard{}, Reshard::yes(), Reshard::no()});
  }
  if (dice.one_in(3)) c.prefetch_forward = dice.below(3), job.note("forward prefetch");
  if (dice.one_in(3)) c.prefetch_backward = dice.below(3), job.note("backward prefetch");
  c.unshard_async = dice.one_in(4);
  c.reduce_scatter_max_inputs = 1 + dice.below(2);
  if (dice.one_in(8)) c.offload = OffloadKind::kParameters, job.note("offload");
}

void set_fsdp1(Dice& dice, Job& job) {
  using Strategy = Fsdp1Options::Strategy;
  using Prefetch = Fsdp1Options::BackwardPrefetch;
  ParallelConfig& c = job.config;
  c.framework = FrameworkKind::kFsdp1;
  c.shard = dice.of({2, 3, 4});
  c.wrap.root_split = false;
  c.fsdp1.use_orig_params = true;  // Frozen and trained parameters share units.
  c.fsdp1.strategy = dice.of({Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard});
  if (c.shard == 2 && dice.one_in(2)) {
    c.replicate = 2;
    c.fsdp1.strategy = dice.of({Strategy::kHybrid, Strategy::kHybridZero2});
  }
  c.fsdp1.backward_prefetch = dice.of({Prefetch::kPre, Prefetch::kPost, Prefetch::kNone});
  c.fsdp1.forward_prefetch = dice.one_in(2);
  c.fsdp1.limit_all_gathers = !dice.one_in(3);
  job.note("strategy " + std::to_string(static_cast<int>(c.fsdp1.strategy)));
}

void set_ddp(Dice& dice, Job& job) {
  ParallelConfig& c = job.config;
  c.framework = FrameworkKind::kDdp;
  c.replicate = dice.of({1, 2, 3, 4});
  DdpOptions& o = c.ddp;
  o.bucket_cap_mib = dice.of({0.001, 0.01, 0.05});
  if (dice.one_in(4)) o.bucket_cap_mib_list = {0.002, 0.01}, job.note("cap list");
  o.last_bucket_small = dice.one_in(5);
  o.gradient_as_bucket_view = dice.one_in(2);
  o.batched_grad_copy = dice.one_in(4);
  o.lazy_bucket_allocation = o.batched_grad_copy != o.last_bucket_small;
  o.static_graph = dice.one_in(3) && (c.accumulate == 1 || c.sync_each_micro_batch);
  o.find_unused_parameters = !o.static_graph && (job.skips || dice.one_in(3));
  o.skip_all_reduce_unused = dice.one_in(3);
  if (dice.one_in(4)) o.comm_hook = DdpCommHook::kAllReduce, job.note("hook");
  c.checkpoint_reentrant = o.static_graph && dice.one_in(3);
  for (const char* text :
       {o.static_graph ? "static" : "", o.find_unused_parameters ? "find unused" : ""})
    job.note(text);
}

void set_zero(Dice& dice, Job& job) {
  ParallelConfig& c = job.config;
  c.framework = dice.of({FrameworkKind::kZero1, FrameworkKind::kZero2, FrameworkKind::kZero3});
  c.shard = dice.of({2, 3, 4});
  c.optimizer = OptimizerKind::kAdamWForeach;
  c.zero.reduce_bucket_size = dice.of({900, 3000, 50'000});
  c.zero.allgather_bucket_size = dice.of({1000, 20'000});
  c.zero.prefetch_bucket_size = dice.of({0, 2000, 100'000});
  c.zero.param_persistence_threshold = dice.of({0, 100, 1000});
  c.zero.max_reuse_distance = dice.of({0, 5000, 1'000'000'000});
  c.zero.sub_group_size = dice.of({4000, 1'000'000'000});
  c.zero.overlap_comm = dice.one_in(2);
  c.zero.contiguous_gradients = !dice.one_in(4);
  c.zero.reduce_scatter = !dice.one_in(4);
  job.note("stage " + std::to_string(static_cast<int>(c.framework) -
                                     static_cast<int>(FrameworkKind::kZero1) + 1));
}

/// The same model on one rank with the batch of all ranks.
ParallelConfig unsharded(const ParallelConfig& c) {
  ParallelConfig one = c;
  one.framework = FrameworkKind::kUnsharded;
  one.micro_batch = c.micro_batch * c.world();
  one.shard = one.replicate = 1;
  one.offload = OffloadKind::kNone;
  one.checkpoint = CheckpointKind::kNone;
  // DeepSpeed divides each loss by the number of micro-batches.
  one.average_micro_batches = c.average_micro_batches || c.framework == FrameworkKind::kZero1 ||
                              c.framework == FrameworkKind::kZero2 ||
                              c.framework == FrameworkKind::kZero3;
  return one;
}

void expect_unsharded_numerics(int seed, void (*set_framework)(Dice&, Job&)) {
  Dice dice(seed);
  Job job;
  make_model(dice, job);
  set_training(dice, job);
  set_framework(dice, job);
  SCOPED_TRACE("seed " + std::to_string(seed) + ":" + job.options);
  const Trace expected = trained(job.model, unsharded(job.config), kSteps);
  const Trace found = trained(job.model, job.config, kSteps,
                              dice.one_in(4) ? StreamMode::kThreads : StreamMode::kInline);
  ASSERT_EQ(found.losses.size(), static_cast<std::size_t>(kSteps));
  expect_near(found.losses, expected.losses, kLossTolerance, "loss");
  if (job.config.clip && !found.gradient_norms.empty()) {
    expect_near(found.gradient_norms, expected.gradient_norms, kNormTolerance, "gradient norm");
  }
}

class Fsdp2Numerics : public ::testing::TestWithParam<int> {};
TEST_P(Fsdp2Numerics, AreThoseOfTheUnshardedModel) {
  expect_unsharded_numerics(GetParam(), set_fsdp2);
}
INSTANTIATE_TEST_SUITE_P(Seeds, Fsdp2Numerics, ::testing::Range(0, kFsdp2Cases));

class Fsdp1NumericsOfSeeds : public ::testing::TestWithParam<int> {};
TEST_P(Fsdp1NumericsOfSeeds, AreThoseOfTheUnshardedModel) {
  expect_unsharded_numerics(GetParam(), set_fsdp1);
}
INSTANTIATE_TEST_SUITE_P(Seeds, Fsdp1NumericsOfSeeds, ::testing::Range(1000, 1000 + kFsdp1Cases));

class DdpNumerics : public ::testing::TestWithParam<int> {};
TEST_P(DdpNumerics, AreThoseOfTheUnshardedModel) { expect_unsharded_numerics(GetParam(), set_ddp); }
INSTANTIATE_TEST_SUITE_P(Seeds, DdpNumerics, ::testing::Range(2000, 2000 + kDdpCases));

class ZeroNumerics : public ::testing::TestWithParam<int> {};
TEST_P(ZeroNumerics, AreThoseOfTheUnshardedModel) {
  expect_unsharded_numerics(GetParam(), set_zero);
}
INSTANTIATE_TEST_SUITE_P(Seeds, ZeroNumerics, ::testing::Range(3000, 3000 + kZeroCases));

}  // namespace
}  // namespace foreshard
