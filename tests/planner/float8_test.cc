// 8-bit products: which products, which casts, how many bytes, by hand from torchao's
// float8_linear.py and Transformer Engine's module/linear.py.

#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <vector>

#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

constexpr std::int64_t kTokens = 3 * 64, kHidden = 128, kFfn = 256;

RankProgram program_of(Float8Kind kind, bool compiled = true) {
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
  c.compile = compiled;
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

/// Collectives of one step: kind, dtype and bytes with their number.
using Sent = std::map<std::tuple<CollectiveKind, DType, std::int64_t>, int>;

/// Three blocks of hidden size 256 and feed-forward size 512 under FSDP2 on 4 ranks, weights of the
/// blocks gathered in 8 bits.
RankProgram gathering_in_8_bits(bool precompute, int steps) {
  PlainModelOptions o;
  o.layers = 3;
  o.hidden = 256;
  o.heads = 4;
  o.ffn = 512;
  o.vocabulary = 1002;
  o.max_sequence = 128;
  ParallelConfig c;
  c.shard = 4;
  c.sequence = 128;
  c.clip = false;
  c.float8 = Float8Kind::kTensorwise;
  c.float8_all_gather = true;
  c.float8_precompute_scales = precompute;
  PlanOptions options;
  options.steps = steps;
  options.executable = false;
  return plan(plain_llama(o), c, options).programs[0];
}

std::vector<Sent> gathered_in_8_bits(bool precompute) {
  const RankProgram p = gathering_in_8_bits(precompute, 2);
  std::vector<Sent> steps;
  for (const Instruction& i : p.instructions) {
    if (i.kind == InstructionKind::kMark && p.marks[i.id].kind == MarkKind::kStep &&
        p.marks[i.id].begin) {
      steps.emplace_back();
    }
    if (i.kind != InstructionKind::kCollective) continue;
    const Collective& sent = p.collectives[i.id];
    ++steps.back()[{sent.kind, sent.dtype, sent.bytes.value}];
  }
  return steps;
}

// torchao 0.18 on a stand-in H100. A block's 4 x 256^2 + 3 x 256 x 512 weights take one byte each
// and its two norms two; everything else travels as without 8 bits. Before the first optimizer step
// every gather of a block (3 in forward, 3 in backward) finds 7 scales with an all-reduce each;
// afterwards one all-reduce of 21 scales serves a whole step.
TEST(Float8, FsdpGathersBlocksInEightBits) {
  const std::vector<Sent> steps = gathered_in_8_bits(true);
  ASSERT_EQ(steps.size(), 2u);
  using K = CollectiveKind;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Sent sent = steps[i];
    EXPECT_EQ((sent[{K::kAllGather, DType::kUInt8, 656384}]), 6) << i;
    EXPECT_EQ((sent[{K::kAllGather, DType::kBFloat16, 514048}]), 2) << i;
    EXPECT_EQ((sent[{K::kAllGather, DType::kBFloat16, 514560}]), 1) << i;
    EXPECT_EQ((sent[{K::kReduceScatter, DType::kFloat32, 2623488}]), 3) << i;
    EXPECT_EQ((sent[{K::kAllReduce, DType::kFloat32, 4}]), i == 0 ? 6 * 7 : 0) << i;
    EXPECT_EQ((sent[{K::kAllReduce, DType::kFloat32, 84}]), 1) << i;
  }
}

// Without torch.compile nothing is shared: input and weight in forward, gradient twice, weight and
// input in backward are each searched for their largest element and cast (float8_linear.py). Two of
// the six lie column by column: their magnitudes are made dense before the maximum is taken, unless
// that is taken row by row.
TEST(Float8, EagerLayersCastForEachProduct) {
  for (const Float8Kind kind : {Float8Kind::kTensorwise, Float8Kind::kRowwise}) {
    std::map<OpKind, int> n = count(program_of(kind, false), true);
    EXPECT_EQ(n[OpKind::kMatmul], 14 * 3);
    EXPECT_EQ(n[OpKind::kAmax], kind == Float8Kind::kTensorwise ? 14 * (6 + 2) : 14 * 6);
    EXPECT_EQ(n[OpKind::kQuantizeFp8], 14 * 6);
  }
  std::map<OpKind, int> n = count(program_of(Float8Kind::kRowwiseHighPrecision, false), true);
  EXPECT_EQ(n[OpKind::kQuantizeFp8], 14 * 4);
}

// Scales never computed ahead: every step is as the first one, without the all-reduce of 21 scales.
TEST(Float8, GathersFindTheirOwnScales) {
  for (Sent sent : gathered_in_8_bits(false)) {
    EXPECT_EQ((sent[{CollectiveKind::kAllReduce, DType::kFloat32, 4}]), 6 * 7);
    EXPECT_EQ((sent[{CollectiveKind::kAllReduce, DType::kFloat32, 84}]), 0);
  }
}

// A Float8TrainingTensor holds its scale; the transposed weight that a layer's graph saves is one
// of its own (float8_ops.py: float8_transpose) and keeps forward's, while the gather before
// backward sets another one on the parameter (fsdp_utils.py: fsdp_post_all_gather, `out._scale =
// scale`). At the first 8-bit product of backward: block 3 has its old 7 and its new 7, block 2 its
// 7 and those of the gather under way, block 1 its 7.
TEST(Float8, GraphsKeepTheScalesOfForward) {
  const RankProgram p = gathering_in_8_bits(false, 1);
  std::int64_t scales = 0;
  for (const Instruction& i : p.instructions) {
    const bool begins = i.kind == InstructionKind::kAlloc, ends = i.kind == InstructionKind::kFree;
    if (begins || ends) {
      const Buffer& b = p.buffers[i.id];
      if (b.category == BufferCategory::kGatherInput && b.bytes.value == 4)
        scales += begins ? 1 : -1;
    }
    if (i.kind != InstructionKind::kLaunch) continue;
    const Launch& l = p.launches[i.id];
    if (l.op == OpKind::kMatmul && l.dtype == DType::kFloat8E5M2) break;
  }
  EXPECT_EQ(scales, 5 * 7);
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
  for (const RankProgram p = program_of(Float8Kind::kTensorwise); const Launch& l : p.launches) {
    if (l.op != OpKind::kMatmul || l.dtype == DType::kBFloat16) continue;
    ++shapes[{l.dims[0], l.dims[1], l.dims[2]}];
    EXPECT_EQ(l.dims[4], l.dims[2] == kTokens && l.dims[0] != kTokens ? 1 : l.dims[4]);
  }
  EXPECT_EQ((shapes[{kTokens, kFfn, kHidden}]), 2 * 3);  // gate, up; gradient of down's input
  EXPECT_EQ((shapes[{kFfn, kHidden, kTokens}]), 2 * 2);  // weight gradients of gate and up
}

}  // namespace
}  // namespace foreshard
