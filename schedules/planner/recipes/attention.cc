// Scaled dot product attention: FlashAttention-2 for 16-bit inputs without a mask, else the
// memory-efficient kernel.

#include <algorithm>

#include "core/integers.h"
#include "models/ops/op_flops.h"
#include "schedules/planner/recipes/attention_kernels.h"
#include "schedules/planner/recipes/masks.h"
#include "schedules/planner/recipes/recipe.h"
#include "schedules/planner/recipes/scratch.h"
#include "schedules/planner/recipes/shape_check.h"
#include "schedules/planner/recipes/special.h"

namespace foreshard {

SymTensor like_query(Host& h, const SymTensor& q, const Shape& shape) {
  SymTensor y = empty_result(h, shape, q->dtype);
  if (q->stride[1] < q->stride[2]) {
    y->stride = {shape[1] * shape[2] * shape[3], shape[3], shape[1] * shape[3], 1};
  }
  return y;
}

std::array<std::int64_t, 6> attention_dims(const SymTensor& q, const SymTensor& k, bool causal,
                                           std::int64_t head, std::int64_t seen) {
  return {q->shape[0],
          q->shape[1],
          q->shape[2],
          k->shape[2],
          head > 0 ? head : q->shape[3],
          seen > 0 ? -seen
          : causal ? 1
                   : 0};
}

std::int64_t seen_flops(const SymTensor& q, const SymTensor& k, bool causal, std::int64_t window,
                        std::int64_t sizes) {
  if (!causal) return 0;
  const std::int64_t pairs = attended_pairs(q->shape[2], k->shape[2], causal, window);
  return saturated_product({2, q->shape[0], q->shape[1], pairs, sizes});
}

void launch_attention(Host& h, OpKind op, std::span<const SymTensor> in,
                      std::span<const SymTensor> out, const std::array<std::int64_t, 6>& dims,
                      bool causal, double scale, int kernels, std::int64_t flops,
                      std::int64_t window) {
  const std::array<double, 3> all{causal ? 1.0 : 0.0, scale, static_cast<double>(window)};
  const std::span<const double> attributes(all.data(), window > 0 ? 3 : 2);
  LaunchRequest q;
  q.op = op;
  q.inputs = in;
  q.outputs = out;
  q.attributes = attributes;
  q.dims = dims;
  q.kernels = kernels;
  q.flops = flops;
  h.launch(q);
}

namespace {

/// FLOPs of products whose inner sizes add up to `sizes`.
std::int64_t product_flops(const SymTensor& q, const SymTensor& k, bool causal,
                           std::int64_t sizes) {
  return saturated_product({2, q->shape[0], q->shape[1], q->shape[2], k->shape[2], sizes}) /
         (causal ? 2 : 1);
}

/// Of an added mask that takes a gradient: rows are aligned to 16 elements.
SymTensor mask_gradient(Host& h, const SymTensor& mask) {
  Shape aligned = mask->shape;
  aligned[-1] = round_up(aligned[-1], 16);
  SymTensor whole = empty_result(h, aligned, mask->dtype);
  return raw_view(h, whole, mask->shape, whole->stride, whole->offset);
}

/// Saved: bias?, key, query, value, log_sumexp, output, philox offset, philox seed. Edges: query,
/// key, value, bias.
void efficient_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  const bool has_mask = ctx.node.ints[1] != 0;
  int i = 0;
  SymTensor mask = has_mask ? ctx.saved(i++) : SymTensor();
  SymTensor k = ctx.saved(i++), q = ctx.saved(i++), v = ctx.saved(i++), lse = ctx.saved(i++),
            o = ctx.saved(i++);
  const bool random_state = ctx.node.ints[2] == 0;  // With dropout it lives on the host.
  SymTensor offset = random_state ? ctx.saved(i++) : SymTensor(),
            seed = random_state ? ctx.saved(i++) : SymTensor();
  const std::int64_t b = q->shape[0], heads = q->shape[1], s = q->shape[2], d = q->shape[3],
                     kv = k->shape[1];
  SymTensor gq = like_query(h, q, q->shape), gk = like_query(h, k, k->shape),
            gv = like_query(h, v, v->shape), gmask;
  const bool causal = ctx.node.ints[0] != 0;
  {
    SymTensor wide_k, wide_v;
    if (kv != heads) {
      wide_k = empty_temporary(h, b * k->shape[2] * heads * d * size_of(k->dtype));
      wide_v = empty_temporary(h, b * k->shape[2] * heads * d * size_of(k->dtype));
    }
    const bool half = size_of(q->dtype) == 2;
    SymTensor delta;
    if (half) {  // The kernel itself computes it.
      delta = empty_temporary(h, b * heads * s * 4);
    } else {  // (grad * out).sum(-1), then made contiguous.
      SymTensor product = empty_temporary(h, o->numel * 4);
      SymTensor sum = empty_temporary(h, b * heads * s * 4);
      delta = empty_temporary(h, b * heads * s * 4);
      sum.reset();
      product.reset();
    }
    const EfficientAttentionShape shape{b * heads, s, k->shape[2], d, v->shape[3], half};
    SymTensor workspace = empty_temporary(h, efficient_attention_workspace_bytes(shape));
    const int kernels =
        (half ? 1 : 4) + (efficient_attention_splits(shape) > 1 ? 1 : 0) + group_sums(heads, kv);
    if (has_mask && ctx.needs(3)) gmask = mask_gradient(h, mask);
    const std::array<SymTensor, 7> in{ctx.grad(), q, k, v, o, lse, mask};
    const std::array<SymTensor, 4> out{gq, gk, gv, gmask};
    const std::int64_t sizes = 3 * d + 2 * v->shape[3];
    launch_attention(h, OpKind::kEfficientAttentionBackward, std::span(in).first(has_mask ? 7 : 6),
                     std::span(out).first(gmask ? 4 : 3),
                     attention_dims(q, k, causal, sizes / 5, 2 * ctx.node.ints[3]), causal,
                     ctx.node.floats[0], kernels, product_flops(q, k, causal, sizes));
    delta.reset();
    workspace.reset();
    wide_v.reset();
    wide_k.reset();
  }
  ctx.set(0, std::move(gq));
  ctx.set(1, std::move(gk));
  ctx.set(2, std::move(gv));
  if (gmask) ctx.set(3, std::move(gmask));
}

/// `seen`: FLOPs that `mask` lets through, if it hides any.
SymTensor efficient(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v,
                    const SymTensor& mask, bool causal, double dropout_p, double scale,
                    std::int64_t seen = 0) {
  Record r(h, efficient_backward, {&q, &k, &v, &mask});
  if (r) {
    r->ints = {causal ? 1 : 0, mask ? 1 : 0, dropout_p > 0 ? 1 : 0, seen};
    r->floats[0] = scale;
    if (mask) r.save(mask);
    r.save(k);
    r.save(q);
    r.save(v);
  }
  SymTensor o, lse, seed, offset;
  const std::array<SymTensor*, 4> kept{&o, &lse, &seed, &offset};
  if (!h.impl().take_kept(KeptOp::kAttention, kept)) {
    if (dropout_p <= 0) {
      seed = empty_result(h, {1}, DType::kInt64);
      offset = empty_result(h, {1}, DType::kInt64);
      h.launch(OpKind::kFill, {}, {seed}, {0.0});
      h.launch(OpKind::kFill, {}, {offset}, {0.0});
    }
    o = empty_result(h, {q->shape[0], q->shape[1], q->shape[2], v->shape[3]}, q->dtype);
    const Shape& n = o->shape;
    o->stride = {n[1] * n[2] * n[3], n[3], n[1] * n[3], 1};
    SymTensor lse_all = empty_result(h, {n[0], n[1], round_up(n[2], 32)}, DType::kFloat32);
    lse = h.view_as(lse_all, {n[0], n[1], n[2]});
    lse->stride = lse_all->stride;
    const bool wide = std::max(q->shape[3], v->shape[3]) > 128 && o->dtype != DType::kFloat32;
    SymTensor accumulator = wide ? empty_temporary(h, o->numel * 4) : SymTensor();
    const std::array<SymTensor, 4> operands{q, k, v, mask};
    const std::array<SymTensor, 2> results{o, lse};
    const std::int64_t sizes = q->shape[3] + v->shape[3];
    launch_attention(h, OpKind::kEfficientAttention, std::span(operands).first(mask ? 4 : 3),
                     results, attention_dims(q, k, causal, sizes / 2, seen), causal, scale, 1,
                     product_flops(q, k, causal, sizes));
    h.impl().offer_kept(KeptOp::kAttention, kept);
  }
  r.attach(o);
  if (r) {
    r.save_output(lse);
    r.save_output(o);
    if (seed) {
      r.save_output(offset);
      r.save_output(seed);
    }
  }
  lse.reset();
  seed.reset();
  offset.reset();
  return o;
}

/// A boolean mask becomes an additive one in q's dtype; rows are padded to a multiple of 8
/// elements. A mask that takes a gradient is expanded to every head.
SymTensor additive_mask(Host& h, const SymTensor& mask, const SymTensor& q) {
  const std::int64_t keys = mask->shape[-1], aligned = round_up(keys, 8);
  if (mask->dtype != DType::kBool) {
    SymTensor m =
        aligned == keys ? mask : slice(h, pad_end(h, mask, -1, aligned - keys), -1, 0, keys);
    return m->requires_grad ? expand(h, m, {q->shape[0], q->shape[1], -1, -1}) : m;
  }
  SymTensor added = additive(h, mask, q->dtype, WhereScalars::kAllocated);
  if (aligned == keys) return added;
  Shape padded = mask->shape;
  padded[-1] = aligned;
  SymTensor y = empty_result(h, padded, q->dtype);
  SymTensor inside = h.view_as(y, mask->shape);
  inside->stride = y->stride;
  h.launch(OpKind::kCopy, {added}, {inside});
  return inside;
}

/// For products, which add rows of any length.
SymTensor unpadded_mask(Host& h, const SymTensor& mask, const SymTensor& q) {
  if (mask->dtype != DType::kBool) return mask;
  return additive(h, mask, q->dtype, WhereScalars::kAllocated);
}

/// The boolean mask of packed rows, made once for a forward (ParallelConfig::packed_sequences).
const SymTensor& packed_mask(Host& h, std::int64_t n) {
  SymTensor& mask = h.impl().packed_mask;
  if (mask && mask->shape[-1] == n) return mask;
  const NoGradGuard no_grad(h);
  SymTensor index = empty_result(h, {n}, DType::kInt64);
  h.launch(OpKind::kArange, {}, {index});
  mask = empty_result(h, {1, 1, n, n}, DType::kBool);
  h.launch(OpKind::kCompare, {raw_view(h, index, {1, 1, 1, n}), raw_view(h, index, {1, 1, n, 1})},
           {mask}, {1.0});
  return mask;
}

}  // namespace

bool takes_mask(const Host& h, const SymTensor& mask, bool causal) {
  return mask || (causal && h.config().packed_sequences &&
                  h.config().attention != AttentionKind::kFlashLibrary);
}

SymTensor repeat_to_heads(Host& h, const SymTensor& t, std::int64_t heads) {
  const std::int64_t kv = t->shape[1];
  if (kv == heads) return t;
  SymTensor five = view(h, t, {t->shape[0], kv, 1, t->shape[2], t->shape[3]});
  SymTensor wide = expand(h, five, {t->shape[0], kv, heads / kv, t->shape[2], t->shape[3]});
  return reshape(h, wide, {t->shape[0], heads, t->shape[2], t->shape[3]});
}

SymTensor attention(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v,
                    const SymTensor& mask, bool causal, double dropout_p, double scale,
                    std::int64_t window) {
  check_attention(h, q, k, v);
  const bool half = q->dtype == DType::kBFloat16 || q->dtype == DType::kFloat16;
  const bool equal_heads = q->shape[3] == v->shape[3] && q->shape[3] <= 256;
  const bool packed = !mask && causal && h.config().packed_sequences;
  if (h.config().attention == AttentionKind::kFlashLibrary)
    return library_flash(h, q, k, v, mask, causal, dropout_p, scale, window);
  if (half && equal_heads && !mask && !packed && h.config().attention == AttentionKind::kFlash)
    return padded_flash(h, q, k, v, causal, dropout_p, scale, 0);
  // Kernels of the GPU read 16 bytes of a row at once; other head sizes are left to products and a
  // softmax there. The executor's takes any.
  const std::int64_t aligned = half ? 8 : 4;
  const bool unaligned = q->shape[3] % aligned != 0 || v->shape[3] % aligned != 0;
  const bool by_ops =
      h.config().attention == AttentionKind::kMath || (unaligned && !h.options().executable);
  const bool eager = h.config().attention == AttentionKind::kEager;
  if (eager) {
    SymTensor added;
    if (mask || packed) added = additive_mask(h, packed ? packed_mask(h, q->shape[2]) : mask, q);
    return eager_attention(h, q, k, v, added, causal, dropout_p, scale, window);
  }
  if (by_ops && !mask && !packed) return math_attention(h, q, k, v, mask, causal, dropout_p, scale);
  if (!mask && !packed) return efficient(h, q, k, v, mask, causal, dropout_p, scale);
  SymTensor wide_k = repeat_to_heads(h, k, q->shape[1]),
            wide_v = repeat_to_heads(h, v, q->shape[1]);
  const SymTensor& given = packed ? packed_mask(h, q->shape[2]) : mask;
  const bool by_products = by_ops && !given->requires_grad;
  SymTensor added = by_products ? unpadded_mask(h, given, q) : additive_mask(h, given, q);
  SymTensor o = by_products
                    ? math_attention(h, q, wide_k, wide_v, added, false, dropout_p, scale)
                    : efficient(h, q, wide_k, wide_v, added, false, dropout_p, scale,
                                seen_flops(q, k, causal, window, q->shape[3] + v->shape[3]));
  added.reset();
  wide_k.reset();  // The frame's locals, in their order.
  wide_v.reset();
  return o;
}

}  // namespace foreshard
