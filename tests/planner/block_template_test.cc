// Plans that copy equal blocks (host/block_template.h) and equal steps (host/step_copy.h) are the
// plans without, entry by entry.
// The plan without templates is the independent source: tests against recordings of PyTorch use it.

#include "schedules/planner/host/block_template.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "core/error.h"
#include "models/catalogue.h"
#include "models/load_model.h"
#include "models/plain/plain_models.h"
#include "schedules/json.h"
#include "schedules/planner/host/host_impl.h"
#include "schedules/planner/training_run.h"

namespace foreshard {
namespace {

struct Copies {
  std::size_t blocks = 0, steps = 0;
};

struct Made {
  Schedule schedule;
  Copies copies;
  bool differs = false;  ///< Refused: plan() would fall back.
};

Made make(const Model& model, const ParallelConfig& config, bool share) {
  Made made;
  HostOptions options;
  options.executable = false;
  options.share_blocks = share;
  try {
    TrainingRun run(model, config, options);
    run.initialize();
    for (int s = 0; s < 3; ++s) run.step();
    const auto& templates = run.host().impl().block_templates;
    if (templates) made.copies = {templates->copies(), run.copied_steps()};
    made.schedule.groups = run.host().groups();
    made.schedule.programs.push_back(run.take());
    made.schedule.world = config.world();
    made.schedule.program_of_rank = {0};
  } catch (const BlocksDiffer&) {
    made.differs = true;
  }
  return made;
}

/// Numbers of copied calls and steps; 0 if the model or configuration has no templates.
Copies compare(const Model& model, const ParallelConfig& config) {
  const Made whole = make(model, config, false), shared = make(model, config, true);
  if (shared.differs) return {};
  std::string expected, found;
  write_schedule(whole.schedule, expected);
  write_schedule(shared.schedule, found);
  EXPECT_TRUE(expected == found) << "sizes " << expected.size() << " and " << found.size();
  return shared.copies;
}

Model small_llama(std::int64_t layers) {
  PlainModelOptions o;
  o.layers = layers;
  o.hidden = 64;
  o.heads = 4;
  o.kv_heads = 2;
  o.vocabulary = 128;
  o.max_sequence = 64;
  return plain_llama(o);
}

ParallelConfig job(FrameworkKind framework) {
  ParallelConfig c;
  c.framework = framework;
  const bool replicated = framework == FrameworkKind::kDdp;
  (replicated ? c.replicate : c.shard) = framework == FrameworkKind::kUnsharded ? 1 : 4;
  c.sequence = 32;
  return c;
}

/// Three steps of six blocks: the first and the last one run for real, where steps repeat in the
/// first step alone.
TEST(BlockTemplate, CopiesAllButTheFirstAndTheLastBlock) {
  const Model model = small_llama(6);
  for (const FrameworkKind f : {FrameworkKind::kUnsharded, FrameworkKind::kDdp,
                                FrameworkKind::kFsdp2, FrameworkKind::kFsdp1, FrameworkKind::kZero1,
                                FrameworkKind::kZero2, FrameworkKind::kZero3}) {
    const bool repeats = f == FrameworkKind::kUnsharded || f == FrameworkKind::kFsdp2;
    const Copies copies = compare(model, job(f));
    EXPECT_EQ(copies.steps, repeats ? 2u : 0u) << static_cast<int>(f);
    EXPECT_EQ(copies.blocks, repeats ? 4u : 3u * 4u) << static_cast<int>(f);
  }
}

/// Steps are copied whatever a micro-batch issues, if it leaves nothing but gradients and inputs.
TEST(BlockTemplate, CopiesStepsOfSeveralMicroBatches) {
  for (const bool tied : {false, true}) {
    PlainModelOptions o;
    o.layers = 2;
    o.tied = tied;
    const Model model = plain_llama(o);
    for (const LossKind loss : {LossKind::kCrossEntropyFloat, LossKind::kChunked}) {
      ParallelConfig c = job(FrameworkKind::kFsdp2);
      c.loss = loss;
      c.replicate = 2;
      c.accumulate = 3;
      c.sync_each_micro_batch = false;
      c.wrap.root_split = false;  // Gradients of one buffer far apart.
      c.offload = tied ? OffloadKind::kNone : OffloadKind::kParameters;
      EXPECT_EQ(compare(model, c).steps, 2u);
    }
  }
}

/// Scales of 8-bit weights are made after the first optimizer step: the second step is another.
TEST(BlockTemplate, RunsStepsThatDependOnTheOneBefore) {
  ParallelConfig c = job(FrameworkKind::kFsdp2);
  c.float8 = Float8Kind::kTensorwise;
  c.float8_all_gather = true;
  c.model_dtype = DType::kBFloat16;
  EXPECT_EQ(compare(small_llama(6), c).steps, 0u);
}

TEST(BlockTemplate, CopiesCheckpointedBlocks) {
  const Model model = small_llama(6);
  for (const CheckpointKind k :
       {CheckpointKind::kFull, CheckpointKind::kSelectiveOp, CheckpointKind::kEveryK}) {
    ParallelConfig c = job(FrameworkKind::kFsdp2);
    c.checkpoint = k;
    c.checkpoint_every = 2;
    EXPECT_GT(compare(model, c).blocks, 0u) << static_cast<int>(k);
  }
}

/// ZeRO-3's hooks of every module inside the block run for each copy, whatever they gather: all
/// parameters (none persistent), some ahead of their use, modules as a whole.
TEST(BlockTemplate, CopiesBlocksWithHooksThatSeeNoTensors) {
  const Model model = small_llama(6);
  const std::string attention = model.at(model.at(model.roles.blocks[0]).children[1].id).class_name;
  for (const std::int64_t prefetch : {0, 5000, 50'000'000}) {
    for (const bool leaves : {false, true}) {
      ParallelConfig c = job(FrameworkKind::kZero3);
      c.zero.param_persistence_threshold = 0;
      c.zero.prefetch_bucket_size = prefetch;
      c.zero.reduce_bucket_size = 20'000;
      if (leaves) c.zero.leaf_classes = {attention};
      EXPECT_EQ(compare(model, c).blocks, 3u * 4u) << prefetch << leaves;
    }
  }
}

/// Hooks inside the block that take its tensors, or run again inside its backward: nothing to copy.
TEST(BlockTemplate, LeavesBlocksWithOtherHooksInside) {
  const Model model = small_llama(6);
  ParallelConfig units = job(FrameworkKind::kFsdp2);
  units.wrap.kind = WrapPolicy::Kind::kModules;
  for (const ModuleId m : model.roles.blocks) {
    const Module& block = model.at(m);
    units.wrap.modules.push_back(model.at(block.children[1].id).name);
    units.wrap.modules.push_back(block.name);
  }
  EXPECT_EQ(compare(model, units).blocks, 0u);
  ParallelConfig again = job(FrameworkKind::kZero3);
  again.checkpoint = CheckpointKind::kFull;
  EXPECT_EQ(compare(model, again).blocks, 0u);
}

class RandomJobs : public testing::TestWithParam<int> {};

template <typename T>
T one_of(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

Model random_model(std::mt19937& random) {
  PlainModelOptions o;
  o.layers = 1 + static_cast<std::int64_t>(random() % 7);
  o.heads = one_of<std::int64_t>(random, {2, 4});
  o.hidden = o.heads * one_of<std::int64_t>(random, {8, 16});
  o.kv_heads = one_of<std::int64_t>(random, {0, 1, 2});
  o.ffn = one_of<std::int64_t>(random, {0, 48, 100});
  o.vocabulary = 96;
  o.max_sequence = 64;
  o.tied = random() % 3 == 0;
  o.qk_norm = random() % 3 == 0;
  o.dtype = one_of(random, {DType::kFloat32, DType::kBFloat16});
  Model m = random() % 2 == 0 ? plain_llama(o) : (o.kv_heads = 0, plain_gpt2(o));
  if (random() % 4 == 0) {  // Some parameters are frozen.
    for (ParameterDef& p : m.parameters) p.trainable = random() % 3 != 0;
    m.parameters.back().trainable = true;
  }
  return m;
}

ParallelConfig random_job(std::mt19937& random, const Model& model) {
  ParallelConfig c =
      job(one_of(random, {FrameworkKind::kUnsharded, FrameworkKind::kDdp, FrameworkKind::kFsdp2,
                          FrameworkKind::kFsdp2, FrameworkKind::kFsdp2, FrameworkKind::kFsdp1,
                          FrameworkKind::kZero1, FrameworkKind::kZero2, FrameworkKind::kZero3,
                          FrameworkKind::kShardedOptimizer}));
  if (c.framework == FrameworkKind::kFsdp2 && random() % 3 == 0) c.replicate = 2;
  c.micro_batch = one_of<std::int64_t>(random, {1, 2});
  c.accumulate = one_of<std::int64_t>(random, {1, 1, 3});
  c.sync_each_micro_batch = random() % 2 == 0;
  c.average_micro_batches = random() % 2 == 0;
  c.wrap.kind = one_of(random, {WrapPolicy::Kind::kBlocks, WrapPolicy::Kind::kBlocks,
                                WrapPolicy::Kind::kEveryK, WrapPolicy::Kind::kRootOnly});
  c.wrap.every = 2;
  c.wrap.root_split = random() % 2 == 0;
  c.reshard = one_of(random, {Reshard{}, Reshard::no(), Reshard::to_group(2)});
  if (random() % 3 == 0) c.prefetch_forward = random() % 3;
  if (random() % 3 == 0) c.prefetch_backward = random() % 3;
  c.precision = one_of(
      random, {MixedPrecision{DType::kBFloat16, DType::kFloat32, {}, {}, true},
               MixedPrecision{DType::kBFloat16, {}, DType::kFloat32, {}, true}, MixedPrecision{}});
  c.model_dtype = model.parameters[0].dtype;
  c.autocast = random() % 6 == 0;
  c.checkpoint =
      one_of(random, {CheckpointKind::kNone, CheckpointKind::kNone, CheckpointKind::kFull,
                      CheckpointKind::kEveryK, CheckpointKind::kSelectiveOp});
  c.checkpoint_every = 2;
  c.checkpoint_early_stop = random() % 2 == 0;
  c.checkpoint_outside_units = random() % 4 == 0;
  c.checkpoint_reentrant = random() % 6 == 0;
  c.optimizer = one_of(
      random, {OptimizerKind::kAdamWFused, OptimizerKind::kAdamWForeach, OptimizerKind::kSgd});
  c.clip = random() % 2 == 0;
  c.loss = one_of(random, {LossKind::kCrossEntropyFloat, LossKind::kChunked, LossKind::kFused});
  c.loss_chunks = 4;
  c.attention = one_of(random, {AttentionKind::kFlash, AttentionKind::kSdpa, AttentionKind::kMath,
                                AttentionKind::kEager});
  c.ddp.gradient_as_bucket_view = random() % 2 == 0;
  c.ddp.static_graph = random() % 4 == 0;
  c.ddp.find_unused_parameters = random() % 4 == 0;
  c.ddp.bucket_cap_mib = one_of<double>(random, {0.01, 0.1, 25});
  c.fsdp1.use_orig_params = random() % 2 == 0;
  c.reduce_scatter_max_inputs = one_of<std::int64_t>(random, {1, 2});
  ZeroOptions& z = c.zero;
  z.param_persistence_threshold = one_of<std::int64_t>(random, {0, 50, 1000, 100'000});
  z.prefetch_bucket_size = one_of<std::int64_t>(random, {0, 100, 3000, 50'000'000});
  z.reduce_bucket_size = one_of<std::int64_t>(random, {2000, 20'000, 500'000'000});
  z.max_reuse_distance = one_of<std::int64_t>(random, {0, 5000, 1'000'000'000});
  z.contiguous_gradients = random() % 4 != 0;
  if (random() % 2 == 0) z.overlap_comm = random() % 2 == 0;
  if (random() % 6 == 0) z.module_granularity_threshold = 5000;
  if (random() % 8 == 0) z.leaf_classes = {model.at(model.roles.blocks[0]).class_name};
  return c;
}

TEST_P(RandomJobs, AreTheSamePlan) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  std::size_t planned = 0, copied = 0, with_steps = 0;
  for (int i = 0; i < 60; ++i) {
    const Model model = random_model(random);
    const ParallelConfig config = random_job(random, model);
    SCOPED_TRACE("job " + std::to_string(i) + ", framework " +
                 std::to_string(static_cast<int>(config.framework)));
    try {
      const Copies copies = compare(model, config);
      copied += copies.blocks > 0 ? 1 : 0;
      with_steps += copies.steps > 0 ? 1 : 0;
      ++planned;
    } catch (const InputError&) {  // Not every combination is one that can run.
    }
  }
  EXPECT_GT(planned, 20u);
  EXPECT_GT(copied, planned / 5);
  EXPECT_GT(with_steps, planned / 10);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomJobs, testing::Range(1, 6));

/// Every family of the catalogue, with few blocks: mixtures of experts, windows, several towers.
TEST(BlockTemplate, CatalogueModelsAreTheSamePlan) {
  for (const CatalogueModel& entry : model_catalogue()) {
    const std::string& name = entry.name;
    const Model model = load_model(name);
    if (model.parameter_count().value > 4'000'000'000) continue;
    SCOPED_TRACE(name);
    ParallelConfig c = job(FrameworkKind::kFsdp2);
    c.model_dtype = DType::kBFloat16;
    compare(model, c);
  }
}

}  // namespace
}  // namespace foreshard
