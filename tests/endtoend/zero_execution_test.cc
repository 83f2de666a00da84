// ZeRO schedules on the CPU executor: valid, and sharding changes no loss beyond rounding.

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "models/plain/plain_models.h"
#include "tests/endtoend/trained.h"

namespace foreshard {
namespace {

using testing::trained;

Model tiny() {
  PlainModelOptions o;
  o.layers = 2;
  o.hidden = 40;
  o.heads = 4;
  o.kv_heads = 2;
  o.ffn = 52;
  o.vocabulary = 61;  // Uneven over four ranks.
  o.max_sequence = 16;
  return plain_llama(o);
}

using Change = std::function<void(ParallelConfig&)>;

ParallelConfig small_job(FrameworkKind framework) {
  ParallelConfig c;
  c.framework = framework;
  (framework == FrameworkKind::kDdp ? c.replicate : c.shard) = 4;
  c.sequence = 8;
  c.micro_batch = 2;
  c.precision = MixedPrecision{};
  c.average_micro_batches = true;  // As DeepSpeed's engine does.
  c.zero.reduce_bucket_size = 3000;
  c.zero.prefetch_bucket_size = 2000;
  c.zero.param_persistence_threshold = 100;
  c.zero.max_reuse_distance = 0;
  return c;
}

/// ZeRO trains as data parallelism does: the same averages of gradients, the same clipping and
/// optimizer, in fp32.
void expect_as_ddp(FrameworkKind framework, const Change& change = {},
                   std::int64_t accumulate = 1) {
  ParallelConfig ddp = small_job(FrameworkKind::kDdp), zero = small_job(framework);
  ddp.accumulate = zero.accumulate = accumulate;
  if (change) change(zero);
  const std::vector<double> expected = trained(tiny(), ddp).losses,
                            found = trained(tiny(), zero).losses;
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-4 * expected[i]) << "step " << i;
}

constexpr FrameworkKind kStages[] = {FrameworkKind::kZero1, FrameworkKind::kZero2,
                                     FrameworkKind::kZero3};

TEST(ZeroExecution, StageOneTrainsAsDdp) { expect_as_ddp(FrameworkKind::kZero1); }
TEST(ZeroExecution, StageTwoTrainsAsDdp) { expect_as_ddp(FrameworkKind::kZero2); }
TEST(ZeroExecution, StageThreeTrainsAsDdp) { expect_as_ddp(FrameworkKind::kZero3); }

TEST(ZeroExecution, MicroBatches) {
  for (const FrameworkKind stage : kStages) expect_as_ddp(stage, {}, 3);
}

TEST(ZeroExecution, OptimizerInHostMemory) {
  for (const FrameworkKind stage : kStages) {
    for (const bool pinned : {false, true}) {
      expect_as_ddp(
          stage,
          [&](ParallelConfig& c) {
            c.offload = OffloadKind::kOptimizer;
            c.zero.pin_memory = pinned;
            c.zero.overlap_comm = pinned;
          },
          pinned ? 1 : 2);
    }
  }
}

TEST(ZeroExecution, PartOfTheOptimizerInHostMemory) {
  for (const double ratio : {0.0, 0.5, 0.8}) {
    expect_as_ddp(
        FrameworkKind::kZero3,
        [&](ParallelConfig& c) {
          c.offload = ratio > 0.6 ? OffloadKind::kBoth : OffloadKind::kOptimizer;
          c.zero.offload_ratio = ratio;
          c.zero.sub_group_size = 1500;
        },
        2);
  }
}

TEST(ZeroExecution, ParametersInHostMemory) {
  expect_as_ddp(FrameworkKind::kZero3,
                [](ParallelConfig& c) { c.offload = OffloadKind::kParameters; });
  expect_as_ddp(
      FrameworkKind::kZero3, [](ParallelConfig& c) { c.offload = OffloadKind::kBoth; }, 2);
}

TEST(ZeroExecution, SubGroupsAndSecondaryGroups) {
  expect_as_ddp(FrameworkKind::kZero3, [](ParallelConfig& c) { c.zero.sub_group_size = 1500; });
  expect_as_ddp(FrameworkKind::kZero3, [](ParallelConfig& c) { c.zero.hpz_partition_size = 2; });
}

TEST(ZeroExecution, BlocksAsLeavesAndCheckpoints) {
  expect_as_ddp(FrameworkKind::kZero3,
                [](ParallelConfig& c) { c.zero.leaf_classes = {"LlamaBlock"}; });
  for (const bool reentrant : {false, true}) {
    expect_as_ddp(FrameworkKind::kZero3, [&](ParallelConfig& c) {
      c.checkpoint = CheckpointKind::kFull;
      c.checkpoint_outside_units = true;
      c.checkpoint_reentrant = reentrant;
    });
  }
}

}  // namespace
}  // namespace foreshard
