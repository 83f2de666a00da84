// The same training with the loss computed from all logits, chunk by chunk, and fused with the
// head: equal losses. (They save memory only where a batch has many more tokens than the head is
// wide: the fused one keeps a second copy of the head's gradient.)

#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"
#include "models/load_model.h"
#include "tests/toy_training.h"

namespace foreshard {
namespace {

PlainModelOptions small() {
  PlainModelOptions o;
  o.layers = 2;
  o.hidden = 32;
  o.heads = 2;
  o.ffn = 48;
  o.vocabulary = 211;
  o.max_sequence = 32;
  return o;
}

std::vector<double> losses(const Model& model, LossKind loss, std::int64_t ranks) {
  ParallelConfig c;
  c.shard = ranks;
  c.sequence = 20;
  c.micro_batch = 2;
  c.loss = loss;
  c.loss_chunks = 3;  // 20 tokens in chunks of 7, 7 and 6.
  c.accumulate = 2;
  c.average_micro_batches = true;
  c.precision = {std::nullopt, std::nullopt, std::nullopt, std::nullopt, true};
  return trained(model, c).losses;
}

void expect_equal_training(const Model& model) {
  for (const std::int64_t ranks : {1, 2}) {
    const std::vector<double> whole = losses(model, LossKind::kCrossEntropyFloat, ranks);
    ASSERT_FALSE(whole.empty());
    EXPECT_NE(whole.front(), whole.back());
    for (const LossKind loss : {LossKind::kChunked, LossKind::kFused}) {
      const std::vector<double> other = losses(model, loss, ranks);
      ASSERT_EQ(other.size(), whole.size());
      for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(other[i], whole[i], 2e-5);
    }
  }
}

TEST(LossVariants, TrainAlike) { expect_equal_training(plain_llama(small())); }

TEST(LossVariants, TrainAlikeWithATiedHead) {
  PlainModelOptions o = small();
  o.tied = true;
  expect_equal_training(plain_gpt2(o));
}

TEST(LossVariants, AreRefusedWhereTheHeadIsNotTheModelsOutput) {
  ParallelConfig c;
  c.loss = LossKind::kFused;
  EXPECT_THROW(plan(load_model("gemma2-2b"), c), InputError);  // A soft cap follows the head.
  EXPECT_THROW(plan(load_model("bert-large"), c), InputError);
}

}  // namespace
}  // namespace foreshard
