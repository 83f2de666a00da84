// Scaled dot product attention without a fused kernel: SDPA's own, products and a softmax in fp32
// (aten/src/ATen/native/transformers/attention.cpp: _scaled_dot_product_attention_math,
// _safe_softmax), and written out (transformers: eager_attention_forward).

#include <cmath>

#include "schedules/planner/recipes/attention_kernels.h"
#include "schedules/planner/recipes/masks.h"
#include "schedules/planner/recipes/special.h"

namespace foreshard {
namespace {

/// repeat_interleave over heads: always a copy.
SymTensor repeat_interleave(Host& h, const SymTensor& t, std::int64_t times) {
  const Shape& n = t->shape;
  SymTensor five = view(h, t, {n[0], n[1], 1, n[2], n[3]});
  SymTensor wide = expand(h, five, {n[0], n[1], times, n[2], n[3]});
  return reshape(h, wide, {n[0], n[1] * times, n[2], n[3]});
}

/// ones.tril(), made additive.
SymTensor causal_bias(Host& h, std::int64_t queries, std::int64_t keys, DType dtype) {
  SymTensor allowed;
  {
    SymTensor ones = empty_result(h, {queries, keys}, DType::kBool);
    h.launch(OpKind::kFill, {}, {ones}, {1.0});
    allowed = empty_result(h, {queries, keys}, DType::kBool);
    h.launch(OpKind::kTril, {ones}, {allowed});
  }
  return additive(h, allowed, dtype, WhereScalars::kAllocated);
}

/// Softmax of the last dimension; rows that are -inf throughout become 0.
SymTensor safe_softmax(Host& h, const SymTensor& x) {
  SymTensor y = softmax(h, x, x->dtype);
  SymTensor infinite = empty_temporary(h, x->numel);
  SymTensor rows = empty_temporary(h, x->numel / x->shape[-1]);
  SymTensor zero = empty_temporary(h, size_of(x->dtype));
  zero.reset();
  rows.reset();
  infinite.reset();
  return y;
}

}  // namespace

SymTensor math_attention(Host& h, const SymTensor& q_in, const SymTensor& k_in,
                         const SymTensor& v_in, const SymTensor& mask, bool causal,
                         double dropout_p, double scale) {
  const DType given = q_in->dtype, wide = DType::kFloat32;
  SymTensor q32 = cast(h, q_in, wide), k32 = cast(h, k_in, wide), v32 = cast(h, v_in, wide);
  const double root =
      std::sqrt(scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(q_in->shape[3])));
  SymTensor bias = mask, q = unary(h, Function::kMulScalar, q32, root);
  if (causal && !mask) {
    const NoGradGuard no_grad(h);
    bias = causal_bias(h, q->shape[2], k32->shape[2], wide);
  }
  SymTensor k = k32, v = v32;
  if (const std::int64_t times = q->shape[1] / k32->shape[1]; times > 1) {
    k = repeat_interleave(h, k32, times);
    v = repeat_interleave(h, v32, times);
  }
  SymTensor weights;
  {
    SymTensor scores = matmul(h, q, unary(h, Function::kMulScalar, transpose(h, k, 2, 3), root),
                              seen_flops(q, k, causal, 0, q->shape[3]));
    if (bias) h.launch(OpKind::kAddInPlace, {scores, bias}, {scores});
    weights = safe_softmax(h, scores);
  }
  if (dropout_p > 0) weights = dropout(h, weights, dropout_p);
  SymTensor narrow = given == wide ? SymTensor() : cast(h, weights, given);
  SymTensor o = matmul(h, weights, v, seen_flops(q, k, causal, 0, v->shape[3]));
  if (given != wide) o = cast(h, o, given);
  weights.reset();
  k.reset();
  v.reset();
  q.reset();
  bias.reset();
  v32.reset();
  k32.reset();
  q32.reset();
  narrow.reset();
  return o;
}

/// Products in the compute dtype, softmax in fp32. The mask is made in each layer; models that hand
/// one down make it once.
SymTensor eager_attention(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v,
                          const SymTensor& mask, bool causal, double dropout_p, double scale,
                          std::int64_t window) {
  const DType given = q->dtype;
  SymTensor wide_k = repeat_to_heads(h, k, q->shape[1]),
            wide_v = repeat_to_heads(h, v, q->shape[1]);
  SymTensor weights =
      matmul(h, q, transpose(h, wide_k, 2, 3), seen_flops(q, k, causal, window, q->shape[3]));
  weights = unary(h, Function::kMulScalar, weights,
                  scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(q->shape[3])));
  if (mask) {
    weights = add(h, weights, mask);
  } else if (causal) {
    SymTensor bias;
    {
      const NoGradGuard no_grad(h);
      bias = causal_bias(h, q->shape[2], k->shape[2], given);
    }
    weights = add(h, weights, bias);
  }
  weights = softmax(h, weights, DType::kFloat32);
  if (given != DType::kFloat32) weights = cast(h, weights, given);
  if (dropout_p > 0) weights = dropout(h, weights, dropout_p);
  return matmul(h, weights, wide_v, seen_flops(q, k, causal, window, v->shape[3]));
}

}  // namespace foreshard
