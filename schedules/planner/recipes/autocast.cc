// torch.autocast("cuda", the dtype of compute): casts in front of products; the casts of leaf
// weights are kept until the context ends (aten/src/ATen/autocast_mode.cpp: cached_cast). C++
// evaluates the arguments from right to left: the bias's and weight's casts come before the
// input's.

#include "schedules/planner/recipes/float8.h"
#include "schedules/planner/recipes/special.h"

namespace foreshard {

void HostImpl::begin_autocast() {
  autocast = true;
  ++autocast_depth;
}

void HostImpl::end_autocast() {
  if (--autocast_depth == 0) {
    autocast_cache.clear();
    autocast = false;
  }
}

DType autocast_dtype(const Host& h) {
  return h.config().precision.param.value_or(DType::kBFloat16);
}

namespace {

SymTensor cached_cast(Host& h, const SymTensor& t) {
  const DType low = autocast_dtype(h);
  if (!t || t->dtype == low || !is_floating(t->dtype)) return t;
  HostImpl& impl = h.impl();
  const bool cacheable = t->dtype == DType::kFloat32 && t->requires_grad && t->is_leaf();
  if (cacheable) {
    for (const HostImpl::CachedCast& c : impl.autocast_cache)
      if (c.source == t.get()) return c.result;
  }
  SymTensor y = cast(h, t, low);
  if (cacheable) impl.autocast_cache.push_back({t.get(), t, y});
  return y;
}

}  // namespace

SymTensor autocast_linear(Host& h, const SymTensor& x, const SymTensor& weight,
                          const SymTensor& bias) {
  if (!h.impl().autocast) return linear(h, x, weight, bias);
  if (float8_is_eager(h.config()) &&
      float8_applies(h, weight)) {  // Float8Linear.forward casts by itself.
    const SymTensor input = cast(h, x, DType::kBFloat16);
    return float8_linear_eager(h, input, weight, bias ? cast(h, bias, input->dtype) : bias);
  }
  SymTensor b = cached_cast(h, bias), w = cached_cast(h, weight), input = cached_cast(h, x);
  return linear(h, input, w, b);
}

SymTensor autocast_attention(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v,
                             const SymTensor& mask, bool causal, double dropout_p, double scale,
                             std::int64_t window) {
  if (!h.impl().autocast) return attention(h, q, k, v, mask, causal, dropout_p, scale, window);
  // Every query head's keys and values are made before the call, in the dtype in which they are.
  SymTensor wide_k = k, wide_v = v;
  if (takes_mask(h, mask, causal)) {
    wide_k = repeat_to_heads(h, k, q->shape[1]);
    wide_v = repeat_to_heads(h, v, q->shape[1]);
  }
  SymTensor o = [&] {
    SymTensor m = cached_cast(h, mask), v16 = cached_cast(h, wide_v), k16 = cached_cast(h, wide_k),
              q16 = cached_cast(h, q);
    return attention(h, q16, k16, v16, m, causal, dropout_p, scale, window);
  }();
  wide_k.reset();
  wide_v.reset();
  return o;
}

SymTensor autocast_matmul(Host& h, const SymTensor& a, const SymTensor& b, std::int64_t seen) {
  if (!h.impl().autocast) return matmul(h, a, b, seen);
  SymTensor b16 = cached_cast(h, b), a16 = cached_cast(h, a);
  return matmul(h, a16, b16, seen);
}

SymTensor autocast_low(Host& h, const SymTensor& x) {
  return h.impl().autocast ? cached_cast(h, x) : x;
}

DType autocast_sum_dtype(Host& h, DType own) {
  const bool sixteen = own == DType::kBFloat16 || own == DType::kFloat16;
  return h.impl().autocast && sixteen ? DType::kFloat32 : own;
}

SymTensor autocast_float(Host& h, const SymTensor& x) {
  return x && h.impl().autocast && x->dtype != DType::kFloat32 ? cast(h, x, DType::kFloat32) : x;
}

SymTensor autocast_conv1d(Host& h, const SymTensor& x, const SymTensor& weight,
                          const SymTensor& bias) {
  if (!h.impl().autocast) return conv1d_linear(h, x, weight, bias);
  SymTensor w = cached_cast(h, weight), input = cached_cast(h, x), b = cached_cast(h, bias);
  return conv1d_linear(h, input, w, b);
}

SymTensor autocast_layer_norm(Host& h, const SymTensor& x, const SymTensor& weight,
                              const SymTensor& bias, double eps) {
  SymTensor b = autocast_float(h, bias), w = autocast_float(h, weight),
            input = autocast_float(h, x);
  return layer_norm(h, input, w, b, eps);
}

SymTensor autocast_rms_norm(Host& h, const SymTensor& x, const SymTensor& weight, double eps) {
  SymTensor w = autocast_float(h, weight), input = autocast_float(h, x);
  return rms_norm(h, input, w, eps);
}

}  // namespace foreshard
