// 8-bit products: which products, which casts, how many bytes, by hand from torchao's
// float8_linear.py and Transformer Engine's module/linear.py.

#include <gtest/gtest.h>

#include <map>

#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

constexpr std::int64_t kTokens = 3 * 64, kHidden = 128, kFfn = 256;

RankProgram program_of(Float8Kind kind, bool all_gather = false) {
  PlainModelOptions o;
  o.layers = 2;
  o.hidden = kHidden;
  o.heads = 2;
  o.ffn = kFfn;
  ParallelConfig c;
  c.framework = FrameworkKind::kUnsharded;
  c.model_dtype = DType::kBFloat16;
  o.dtype = DType::kBFloat16;
  c.micro_batch = 3;
  c.sequence = 64;
  c.float8 = kind;
  c.float8_all_gather = all_gather;
  PlanOptions options;
  options.steps = 1;
  return plan(plain_llama(o), c, options).programs[0];
}

std::map<OpKind, int> count(const RankProgram& p, bool eight_bits) {
  std::map<OpKind, int> n;
  for (const Launch& l : p.launches) {
    const bool small = l.dtype == DType::kFloat8E4M3 || l.dtype == DType::kFloat8E5M2;
    if (l.op != OpKind::kMatmul || small == eight_bits) ++n[l.op];
  }
  return n;
}

// 7 linear layers a block (q, k, v, o, gate, up, down), 2 blocks, three products each; the head's
// three stay in 16 bits.
TEST(Float8, BlocksMultiplyInEightBitsTheHeadDoesNot) {
  const RankProgram p = program_of(Float8Kind::kTensorwise);
  EXPECT_EQ(count(p, true)[OpKind::kMatmul], 7 * 2 * 3);
  EXPECT_EQ(count(p, false)[OpKind::kMatmul], 3);
  EXPECT_EQ(count(program_of(Float8Kind::kNone), true)[OpKind::kMatmul], 0);
}

// For each layer a pass for the largest element of input, weight and output gradient; casts of
// these, and columns of all three in backward.
TEST(Float8, TensorwiseScalesNeedAPassEach) {
  std::map<OpKind, int> n = count(program_of(Float8Kind::kTensorwise), true);
  EXPECT_EQ(n[OpKind::kAmax], 14 * 3);
  EXPECT_EQ(n[OpKind::kQuantizeFp8], 14 * 6);
  n = count(program_of(Float8Kind::kRowwise), true);
  EXPECT_EQ(n[OpKind::kAmax], 0);
  EXPECT_EQ(n[OpKind::kQuantizeFp8], 14 * 6);
}

TEST(Float8, GatheredWeightsAreCastBeforeForward) {
  std::map<OpKind, int> n = count(program_of(Float8Kind::kTensorwise, true), true);
  EXPECT_EQ(n[OpKind::kAmax], 14 * 2);
  EXPECT_EQ(n[OpKind::kQuantizeFp8], 14 * 5);
}

// Weight gradients in 16 bits: two 8-bit products a layer, no columns of input and gradient.
TEST(Float8, WeightGradientInHighPrecision) {
  const RankProgram p = program_of(Float8Kind::kRowwiseHighPrecision);
  EXPECT_EQ(count(p, true)[OpKind::kMatmul], 14 * 2);
  EXPECT_EQ(count(p, false)[OpKind::kMatmul], 3 + 14);
  EXPECT_EQ(count(p, true)[OpKind::kQuantizeFp8], 14 * 4);
}

// Transformer Engine casts input, weight and gradient once each, both layouts in one kernel: 2
// bytes read, 2 written.
TEST(Float8, DelayedScalingCastsOnce) {
  const RankProgram p = program_of(Float8Kind::kDelayed);
  EXPECT_EQ(count(p, true)[OpKind::kQuantizeFp8], 14 * 3);
  std::int64_t input = 0;
  for (const Launch& l : p.launches) {
    if (l.op != OpKind::kQuantizeFp8) continue;
    EXPECT_EQ(l.read, l.written);
    input = std::max(input, l.read.value);
  }
  EXPECT_EQ(input, 2 * kTokens * kFfn);
}

// The weight gradient is [out, in] summed over the tokens, and says so for the cost model.
TEST(Float8, ShapesOfTheThreeProducts) {
  std::map<std::array<std::int64_t, 3>, int> shapes;
  for (const Launch& l : program_of(Float8Kind::kTensorwise).launches) {
    if (l.op != OpKind::kMatmul || l.dtype == DType::kBFloat16) continue;
    ++shapes[{l.dims[0], l.dims[1], l.dims[2]}];
    EXPECT_EQ(l.dims[4], l.dims[2] == kTokens && l.dims[0] != kTokens ? 1 : l.dims[4]);
  }
  EXPECT_EQ((shapes[{kTokens, kFfn, kHidden}]), 2 * 3);  // gate, up; gradient of down's input
  EXPECT_EQ((shapes[{kFfn, kHidden, kTokens}]), 2 * 2);  // weight gradients of gate and up
}

}  // namespace
}  // namespace foreshard
