// A sharded optimizer trains as one device does with the batch of all ranks; clipping included: the
// norm is that of torch.nn.utils.clip_grad_norm_ over all gradients, whoever holds them.

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
