#include "models/ops/op_flops.h"

namespace foreshard {
namespace {

using Dims = std::array<std::int64_t, 6>;

/// A multiply-add counts two.
Flops product(const Dims& d) {
  return Flops(saturated_product({2, d[0], d[1], d[2], d[3] > 0 ? d[3] : 1}));
}

/// Two products of queries x keys x head dim; a causal mask halves the work.
Flops attention(const Dims& d) {
  const std::int64_t full = saturated_product({4, d[0], d[1], d[2], d[3], d[4]});
  return Flops(d[5] > 0 ? full / 2 : full);
}

/// Five products: scores again, dV, dP, dQ, dK (FlashAttention-2).
Flops attention_backward(const Dims& d) {
  return Flops(saturated_product({attention(d).value / 2, 5}));
}

}  // namespace

std::int64_t saturated_product(std::initializer_list<std::int64_t> factors) {
  std::int64_t out = 1;
  for (const std::int64_t x : factors)
    if (__builtin_mul_overflow(out, x, &out)) return INT64_MAX;
  return out;
}

namespace {

enum class Counted : std::uint8_t { kNone, kProduct, kAttention, kAttentionBackward };

Counted counted_as(OpKind kind) {
  switch (kind) {
    case OpKind::kMatmul:
    case OpKind::kMatmulBias:
    case OpKind::kGroupedMatmul:
    case OpKind::kConv2d:
    case OpKind::kConv2dBackward:
    case OpKind::kConv1dDepthwise:
    case OpKind::kConv1dDepthwiseBackward:
      return Counted::kProduct;
    case OpKind::kFlashAttention:
    case OpKind::kEfficientAttention:
      return Counted::kAttention;
    case OpKind::kFlashAttentionBackward:
    case OpKind::kEfficientAttentionBackward:
      return Counted::kAttentionBackward;
    default:
      return Counted::kNone;
  }
}

}  // namespace

Flops flops_behind_mask(OpKind kind, const Dims& dims) {
  const Counted counted = counted_as(kind);
  const bool attends = counted == Counted::kAttention || counted == Counted::kAttentionBackward;
  const std::int64_t use = attends ? dims[5] : counted == Counted::kProduct ? dims[4] : 0;
  return Flops(use < 0 ? -use : 0);
}

std::int64_t attended_pairs(std::int64_t queries, std::int64_t keys, bool causal,
                            std::int64_t window) {
  const std::int64_t all = saturated_product({queries, keys});
  if (!causal) return all;
  if (window <= 0 || window >= keys) return all / 2;
  return saturated_product({queries, window}) - window * (window - 1) / 2;
}

bool has_dims(OpKind kind) { return counted_as(kind) != Counted::kNone; }

Flops flops_of(OpKind kind, const Dims& dims) {
  switch (counted_as(kind)) {
    case Counted::kProduct:
      return product(dims);
    case Counted::kAttention:
      return attention(dims);
    case Counted::kAttentionBackward:
      return attention_backward(dims);
    case Counted::kNone:
      break;
  }
  return {};
}

}  // namespace foreshard
