#include "models/ops/op_registry.h"

namespace foreshard {
namespace {

using Dims = std::array<std::int64_t, 6>;

Flops none(const Dims&, std::int64_t) { return {}; }

/// A multiply-add counts two.
Flops product(const Dims& d, std::int64_t) {
  return Flops(2 * d[0] * d[1] * d[2] * (d[3] > 0 ? d[3] : 1));
}

/// Two products of queries x keys x head dim; a causal mask halves the work.
Flops attention(const Dims& d, std::int64_t) {
  const std::int64_t full = 4 * d[0] * d[1] * d[2] * d[3] * d[4];
  return Flops(d[5] != 0 ? full / 2 : full);
}

/// Five products: scores again, dV, dP, dQ, dK (FlashAttention-2).
Flops attention_backward(const Dims& d, std::int64_t n) {
  const std::int64_t forward = attention(d, n).value;
  return Flops(forward / 2 * 5);
}

constexpr OpRow row(OpKind k, OpClass c, Flops (*f)(const Dims&, std::int64_t) = none) {
  return {k, c, f};
}

constexpr OpRow describe(OpKind k) {
  switch (k) {
    case OpKind::kMatmul:
    case OpKind::kMatmulBias:
    case OpKind::kGroupedMatmul:
    case OpKind::kConv2d:
    case OpKind::kConv2dBackward:
    case OpKind::kConv1dDepthwise:
    case OpKind::kConv1dDepthwiseBackward:
      return row(k, OpClass::kMatmul, product);
    case OpKind::kFlashAttention:
    case OpKind::kEfficientAttention:
      return row(k, OpClass::kAttention, attention);
    case OpKind::kFlashAttentionBackward:
    case OpKind::kEfficientAttentionBackward:
      return row(k, OpClass::kAttention, attention_backward);
    case OpKind::kSum:
    case OpKind::kMean:
    case OpKind::kNorm:
    case OpKind::kAmax:
    case OpKind::kCumsum:
    case OpKind::kCheckFinite:
    case OpKind::kHistogram:
      return row(k, OpClass::kReduction);
    case OpKind::kLayerNorm:
    case OpKind::kLayerNormBackward:
    case OpKind::kLayerNormBackwardGamma:
    case OpKind::kRmsNorm:
    case OpKind::kRmsNormBackward:
    case OpKind::kRmsNormBackwardGamma:
    case OpKind::kSoftmax:
    case OpKind::kSoftmaxBackward:
      return row(k, OpClass::kNormalisation);
    case OpKind::kEmbedding:
    case OpKind::kEmbeddingBackward:
    case OpKind::kGather:
    case OpKind::kScatter:
    case OpKind::kIndexSelect:
    case OpKind::kIndexAdd:
    case OpKind::kTopK:
    case OpKind::kSort:
    case OpKind::kNonzero:
    case OpKind::kMaskedScatter:
    case OpKind::kMaskedSelect:
      return row(k, OpClass::kIndexing);
    case OpKind::kLogSoftmax:
    case OpKind::kLogSoftmaxBackward:
    case OpKind::kNllLoss:
    case OpKind::kNllLossBackward:
    case OpKind::kMseLoss:
    case OpKind::kMseLossBackward:
    case OpKind::kFusedCrossEntropy:
      return row(k, OpClass::kLoss);
    case OpKind::kForeachCopy:
    case OpKind::kSplitCopy:
    case OpKind::kChunkCat:
    case OpKind::kForeachAdd:
    case OpKind::kForeachMul:
    case OpKind::kForeachDiv:
    case OpKind::kForeachSqrt:
    case OpKind::kForeachLerp:
    case OpKind::kForeachAddcmul:
    case OpKind::kForeachAddcdiv:
    case OpKind::kForeachNorm:
    case OpKind::kFusedAdamW:
    case OpKind::kAdamWUpdate:
    case OpKind::kSgdUpdate:
    case OpKind::kFlatten:
    case OpKind::kUnflatten:
      return row(k, OpClass::kList);
    case OpKind::kInitialize:
    case OpKind::kObserve:
    case OpKind::kClipCoefficient:
    case OpKind::kFusedBlock:
      return row(k, OpClass::kOther);
    default:
      return row(k, OpClass::kElementwise);
  }
}

constexpr std::array<OpRow, kOpKindCount> make_rows() {
  std::array<OpRow, kOpKindCount> rows{};
  for (int i = 0; i < kOpKindCount; ++i)
    rows[static_cast<std::size_t>(i)] = describe(static_cast<OpKind>(i));
  return rows;
}
constexpr std::array<OpRow, kOpKindCount> kRows = make_rows();

}  // namespace

const OpRow& row_of(OpKind kind) { return kRows[static_cast<std::size_t>(kind)]; }

Flops flops_of(OpKind kind, const Dims& dims, std::int64_t output_elements) {
  return row_of(kind).flops(dims, output_elements);
}

}  // namespace foreshard
