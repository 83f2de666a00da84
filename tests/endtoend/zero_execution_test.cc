// ZeRO schedules on the CPU executor: valid, and sharding changes no loss beyond rounding.

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/toy_training.h"

namespace foreshard {
namespace {

using Change = std::function<void(ParallelConfig&)>;

ParallelConfig small_job(FrameworkKind framework) {
  ParallelConfig c = toy_config(framework);
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
  const Model model = plain_llama(uneven_sizes(2));
  expect_near(trained(model, zero).losses, trained(model, ddp).losses, 1e-4);
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
