// FSDP1 schedules on the CPU executor: valid, and neither sharding strategy nor option changes a loss beyond rounding,
// against data parallelism of whole models (the same averages of gradients, the same clipping and optimizer, in fp32).

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "exec/run.h"
#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"
#include "schedules/validate.h"

namespace foreshard {
namespace {

using Strategy = Fsdp1Options::Strategy;
using Prefetch = Fsdp1Options::BackwardPrefetch;

Model tiny() {
  PlainModelOptions o;
  o.layers = 3;
  o.hidden = 40;
  o.heads = 4;
  o.kv_heads = 2;
  o.ffn = 52;
  o.vocabulary = 61;   // Uneven over four ranks.
  o.max_sequence = 16;
  return plain_llama(o);
}

std::vector<double> losses(const std::function<void(ParallelConfig&)>& change) {
  ParallelConfig c;
  c.framework = FrameworkKind::kFsdp1;
  c.shard = 4;
  c.sequence = 8;
  c.micro_batch = 2;
  c.precision = MixedPrecision{};
  c.wrap.root_split = false;
  change(c);
  PlanOptions options;
  options.steps = 3;
  const Schedule s = plan(tiny(), c, options);
  const auto findings = validate(s);
  EXPECT_TRUE(findings.empty()) << text_of(s, findings.front());
  RunOptions run_options;
  run_options.mode = StreamMode::kInline;
  return run(s, run_options).trace.losses;
}

void expect_as_ddp(const std::function<void(ParallelConfig&)>& change) {
  const std::vector<double> expected = losses([&](ParallelConfig& c) {
    change(c);
    c.framework = FrameworkKind::kDdp;
    c.offload = OffloadKind::kNone;
    c.replicate = c.shard * c.replicate;
    c.shard = 1;
    c.checkpoint_reentrant = c.checkpoint_outside_units = false;
  });
  const std::vector<double> found = losses(change);
  ASSERT_EQ(found.size(), expected.size());
  ASSERT_GE(found.size(), 3u);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4 * expected[i]) << "step " << i;
}

TEST(Fsdp1Numerics, FullShard) { expect_as_ddp([](ParallelConfig&) {}); }

TEST(Fsdp1Numerics, OriginalParametersAndForwardPrefetch) {
  expect_as_ddp([](ParallelConfig& c) {
    c.fsdp1.use_orig_params = c.fsdp1.forward_prefetch = true;
    c.shard = 3;                            // Neither parameters nor padding divide evenly.
  });
}

TEST(Fsdp1Numerics, ShardGradOpAfterwards) {
  expect_as_ddp([](ParallelConfig& c) {
    c.fsdp1.strategy = Strategy::kShardGradOp;
    c.fsdp1.backward_prefetch = Prefetch::kPost;
    c.fsdp1.use_orig_params = true;
    c.accumulate = 2;
  });
}

TEST(Fsdp1Numerics, NoShard) {
  expect_as_ddp([](ParallelConfig& c) { c.fsdp1.strategy = Strategy::kNoShard; });
}

TEST(Fsdp1Numerics, HybridWithoutSyncOfEveryMicroBatch) {
  expect_as_ddp([](ParallelConfig& c) {
    c.fsdp1.strategy = Strategy::kHybrid;
    c.shard = c.replicate = 2;
    c.accumulate = 2;
    c.sync_each_micro_batch = false;
  });
}

TEST(Fsdp1Numerics, Offload) {
  expect_as_ddp([](ParallelConfig& c) {
    c.offload = OffloadKind::kParameters;
    c.clip = false;
  });
}

TEST(Fsdp1Numerics, CheckpointsInsideAndAroundTheUnits) {
  for (const bool outside : {false, true}) {
    for (const bool reentrant : {false, true}) {
      expect_as_ddp([&](ParallelConfig& c) {
        c.checkpoint = CheckpointKind::kFull;
        c.checkpoint_outside_units = outside;
        c.checkpoint_reentrant = reentrant;
      });
    }
  }
}

}  // namespace
}  // namespace foreshard
