// A sharded optimizer trains as one device does with the batch of all ranks; clipping included: the
// norm is that of torch.nn.utils.clip_grad_norm_ over all gradients, whoever holds them.

#include "core/error.h"
#include "tests/toy_training.h"

namespace foreshard {
namespace {

void expect_unsharded_numbers(const ParallelConfig& c) {
  const Model model = plain_llama(uneven_sizes(2));  // All tensors divide by four, none by three.
  ParallelConfig one = c;
  one.framework = FrameworkKind::kUnsharded;
  one.micro_batch = c.micro_batch * c.world();
  one.shard = one.replicate = 1;
  const Trace expected = trained(model, one), found = trained(model, c);
  ASSERT_FALSE(found.gradient_norms.empty());
  expect_near(found.gradient_norms, expected.gradient_norms, 1e-4, "gradient norm");
  expect_near(found.losses, expected.losses, 1e-4, "loss");
}

TEST(ShardedOptimizerNumerics, BucketsAndGathers) {
  expect_unsharded_numbers(toy_config(FrameworkKind::kShardedOptimizer));
}

TEST(ShardedOptimizerNumerics, CopiesOfShards) {
  ParallelConfig c = toy_config(FrameworkKind::kShardedOptimizer);
  c.shard = c.replicate = 2;
  expect_unsharded_numbers(c);
}

// Every combination of the options that is planned to be run, small buckets and accumulation
// included; the others are refused.
TEST(ShardedOptimizerNumerics, EveryCombinationOfOptions) {
  for (int bits = 0; bits < 1 << 7; ++bits) {
    const auto bit = [bits](int i) { return (bits >> i & 1) != 0; };
    ParallelConfig c = toy_config(FrameworkKind::kShardedOptimizer);
    ShardedOptimizerOptions& o = c.sharded_optimizer;
    o.accumulate_in_float32 = bit(0);
    o.one_collective_per_tensor = bit(1);
    o.reduce_scatter = bit(2);
    o.reduce_after_backward = bit(3);
    o.one_hardware_queue = bit(4);
    if (bit(5)) o.bucket_mib = 0.01;
    c.accumulate = bit(6) ? 2 : 1;
    c.sync_each_micro_batch = false;
    if (o.reduce_after_backward && !o.accumulate_in_float32) continue;
    if (o.reduce_scatter && (!o.one_collective_per_tensor || o.reduce_after_backward)) continue;
    SCOPED_TRACE("options " + std::to_string(bits));
    expect_unsharded_numbers(c);
  }
}

TEST(ShardedOptimizerNumerics, WhatIsOnlySimulatedIsNotPlannedToBeRun) {
  for (const auto option :
       {&ShardedOptimizerOptions::owners_broadcast, &ShardedOptimizerOptions::gather_lists}) {
    ParallelConfig c = toy_config(FrameworkKind::kShardedOptimizer);
    c.sharded_optimizer.*option = true;
    EXPECT_THROW(plan(plain_llama(uneven_sizes(2)), c), InputError);
  }
}

TEST(ShardedOptimizerNumerics, ScatteredFloat32Sums) {
  ParallelConfig c = toy_config(FrameworkKind::kShardedOptimizer);
  c.sharded_optimizer.accumulate_in_float32 = c.sharded_optimizer.one_collective_per_tensor = true;
  c.sharded_optimizer.reduce_scatter = true;
  expect_unsharded_numbers(c);
}

// 40 = 14 + 13 + 13 and so on: every tensor's last elements belong to a smaller part.
TEST(ShardedOptimizerNumerics, PartsOfDifferentSizes) {
  ParallelConfig c = toy_config(FrameworkKind::kShardedOptimizer);
  c.shard = 3;
  expect_unsharded_numbers(c);
  c.replicate = 2;
  expect_unsharded_numbers(c);
}

TEST(ShardedOptimizerNumerics, SumsReducedToPartsOfDifferentSizes) {
  ParallelConfig c = toy_config(FrameworkKind::kShardedOptimizer);
  c.shard = 7;
  c.sharded_optimizer.accumulate_in_float32 = c.sharded_optimizer.one_collective_per_tensor = true;
  c.sharded_optimizer.reduce_scatter = true;
  expect_unsharded_numbers(c);
}

}  // namespace
}  // namespace foreshard
