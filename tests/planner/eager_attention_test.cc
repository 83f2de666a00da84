// Attention that a model writes out: which kernels run and what they move, by hand. The rule:
// transformers models/llama/modeling_llama.py, eager_attention_forward.

#include <gtest/gtest.h>

#include <map>

#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

/// Launches of one step on one rank whose operands hold the scores of four heads.
std::map<OpKind, Bytes> written(AttentionKind kind) {
  PlainModelOptions o;
  o.layers = 1;
  o.hidden = 64;
  o.heads = o.kv_heads = 4;
  o.ffn = 128;
  o.vocabulary = 96;
  o.max_sequence = 512;
  ParallelConfig c;
  c.framework = FrameworkKind::kUnsharded;
  c.sequence = 512;
  c.model_dtype = DType::kBFloat16;
  c.attention = kind;
  PlanOptions options;
  options.steps = 1;
  options.executable = false;
  Model m = plain_llama(o);
  m.set_dtype(DType::kBFloat16);
  const RankProgram p = plan(m, c, options).programs[0];
  std::map<OpKind, Bytes> most;
  for (const Launch& l : p.launches) most[l.op] = std::max(most[l.op], l.written);
  return most;
}

constexpr std::int64_t kScores = 4 * 512 * 512;

TEST(EagerAttention, ProductsInSixteenBitsSoftmaxInFloat32) {
  const auto eager = written(AttentionKind::kEager);
  EXPECT_EQ(eager.at(OpKind::kMatmul), Bytes(2 * kScores));
  EXPECT_EQ(eager.at(OpKind::kSoftmax), Bytes(4 * kScores));
  EXPECT_EQ(eager.at(OpKind::kMulScalar), Bytes(2 * kScores));
  EXPECT_EQ(eager.at(OpKind::kAdd), Bytes(2 * kScores));
  EXPECT_EQ(eager.count(OpKind::kFlashAttention), 0U);
}

/// SDPA's own composition multiplies in fp32.
TEST(EagerAttention, MathMultipliesInFloat32) {
  EXPECT_EQ(written(AttentionKind::kMath).at(OpKind::kMatmul), Bytes(4 * kScores));
}

}  // namespace
}  // namespace foreshard
