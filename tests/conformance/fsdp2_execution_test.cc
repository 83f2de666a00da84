// FSDP2 schedules on the CPU executor: valid, and what is only a matter of scheduling changes no
// loss.

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/toy_training.h"

namespace foreshard {
namespace {

std::vector<double> losses(const std::function<void(ParallelConfig&)>& change) {
  ParallelConfig c = toy_config(FrameworkKind::kFsdp2);
  change(c);
  return trained(plain_llama(uneven_sizes(3)), c, 2).losses;
}

void expect_same(const std::vector<double>& found, const std::vector<double>& expected) {
  expect_near(found, expected, 1e-5);
}

TEST(Fsdp2Execution, OneShardEqualsTheUnshardedModel) {
  expect_same(losses([](ParallelConfig& c) { c.shard = 1; }), losses([](ParallelConfig& c) {
                c.shard = 1;
                c.framework = FrameworkKind::kUnsharded;
              }));
}

TEST(Fsdp2Execution, SchedulingChangesNoLoss) {
  const auto expected = losses([](ParallelConfig&) {});
  expect_same(losses([](ParallelConfig& c) { c.shard = c.replicate = 2; }), expected);
  expect_same(losses([](ParallelConfig& c) { c.reshard = Reshard::to_group(2); }), expected);
  expect_same(losses([](ParallelConfig& c) { c.reshard = Reshard::no(); }), expected);
  expect_same(losses([](ParallelConfig& c) { c.checkpoint = CheckpointKind::kFull; }), expected);
  expect_same(losses([](ParallelConfig& c) { c.unshard_async = true; }), expected);
  expect_same(losses([](ParallelConfig& c) { c.prefetch_forward = c.prefetch_backward = 2; }),
              expected);
  expect_same(losses([](ParallelConfig& c) { c.offload = OffloadKind::kParameters; }), expected);
}

TEST(Fsdp2Execution, AccumulationWithoutSyncEqualsWithSync) {
  const auto accumulate = [](bool sync) {
    return losses([sync](ParallelConfig& c) {
      c.accumulate = 2;
      c.sync_each_micro_batch = sync;
    });
  };
  expect_same(accumulate(false), accumulate(true));
}

}  // namespace
}  // namespace foreshard
