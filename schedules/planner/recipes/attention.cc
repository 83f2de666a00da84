// Scaled dot product attention: FlashAttention-2 for 16-bit inputs without a mask, else the
// memory-efficient kernel. flash-attn's own functions are planned as SDPA's flash kernel, which is
// made of their sources: equal results, saved tensors and scratch (not recorded: no GPU).

#include <algorithm>
#include <cmath>

#include "core/integers.h"
#include "models/ops/op_flops.h"
#include "schedules/planner/host/host_refusal.h"
#include "schedules/planner/recipes/masks.h"
#include "schedules/planner/recipes/recipe.h"
#include "schedules/planner/recipes/scratch.h"
#include "schedules/planner/recipes/special.h"

namespace foreshard {
namespace {

/// A tensor [b, h, s, d] laid out as q is: [b, s, h, d] in memory unless q is contiguous as it
/// stands.
SymTensor like_query(Host& h, const SymTensor& q, const Shape& shape) {
  SymTensor y = empty_result(h, shape, q->dtype);
  if (q->stride[1] < q->stride[2]) {
    y->stride = {shape[1] * shape[2] * shape[3], shape[3], shape[1] * shape[3], 1};
  }
  return y;
}

/// `head`: mean head size of the products where q's and v's differ (forward one each, backward
/// three and two).
std::array<std::int64_t, 6> attention_dims(const SymTensor& q, const SymTensor& k, bool causal,
                                           std::int64_t head = 0) {
  return {q->shape[0],   q->shape[1], q->shape[2], k->shape[2], head > 0 ? head : q->shape[3],
          causal ? 1 : 0};
}

/// FLOPs of products whose inner sizes add up to `sizes`.
std::int64_t product_flops(const SymTensor& q, const SymTensor& k, bool causal,
                           std::int64_t sizes) {
  return saturated_product({2, q->shape[0], q->shape[1], q->shape[2], k->shape[2], sizes}) /
         (causal ? 2 : 1);
}

/// FLOPs of so many products where a causal query sees the last `window` keys only.
std::int64_t window_flops(const SymTensor& q, const SymTensor& k, std::int64_t window,
                          std::int64_t products) {
  const std::int64_t s = q->shape[2], w = std::min(window, k->shape[2]);
  const std::int64_t pairs = saturated_product({s, w}) - w * (w - 1) / 2;
  return saturated_product({2 * products, q->shape[0], q->shape[1], pairs, q->shape[3]});
}

void launch_attention(Host& h, OpKind op, std::span<const SymTensor> in,
                      std::span<const SymTensor> out, const std::array<std::int64_t, 6>& dims,
                      bool causal, double scale, int kernels, std::int64_t flops = -1,
                      std::int64_t window = 0) {
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

/// Sums of dk and dv over the query heads of a key head.
constexpr int group_sums(std::int64_t heads, std::int64_t key_heads) {
  return key_heads != heads ? 2 : 0;
}

/// `t` [b, h, s, d] if its memory is dense in the order [b, s, h, d], else a copy that is.
SymTensor rows_first(Host& h, const SymTensor& t) {
  const Shape& n = t->shape;
  SymTensor swapped = raw_view(h, t, {n[0], n[2], n[1], n[3]},
                               {t->stride[0], t->stride[2], t->stride[1], t->stride[3]}, t->offset);
  if (is_contiguous(*swapped)) return t;
  SymTensor y = empty_result(h, n, t->dtype);
  y->stride = {n[1] * n[2] * n[3], n[3], n[1] * n[3], 1};
  h.launch(OpKind::kCopy, {t}, {y});
  return y;
}

/// Saved: key, query, value, logsumexp, output, rng state, unused. Temporaries: softmax_d, fp32 dq
/// accumulator; with grouped queries dk and dv of every query head.
void flash_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor k = ctx.saved(0), q = ctx.saved(1), v = ctx.saved(2), lse = ctx.saved(3),
            o = ctx.saved(4);
  SymTensor rng = ctx.saved(5), unused = ctx.saved(6);
  const std::int64_t b = q->shape[0], heads = q->shape[1], s = q->shape[2], d = q->shape[3],
                     kv = k->shape[1];
  // The kernel wants the gradient and the output as [b, s, h, d].
  SymTensor dense_grad = rows_first(h, ctx.grad()), dense_o = rows_first(h, o);
  SymTensor gq = like_query(h, q, q->shape), gk = like_query(h, k, k->shape),
            gv = like_query(h, v, v->shape);
  const std::int64_t rows = round_up(s, 128), width = round_up(d, d <= 128 ? 32 : 64);
  {
    SymTensor d_sum = empty_temporary(h, b * heads * rows * 4);
    SymTensor dq = empty_temporary(h, b * rows * heads * width * 4);
    SymTensor wide_k, wide_v;
    if (kv != heads) {
      wide_k = empty_temporary(h, b * k->shape[2] * heads * d * size_of(k->dtype));
      wide_v = empty_temporary(h, b * k->shape[2] * heads * d * size_of(k->dtype));
    }
    const bool causal = ctx.node.ints[0] != 0;
    const std::int64_t window = ctx.node.ints[1];
    const std::array<SymTensor, 6> in{dense_grad, q, k, v, dense_o, lse};
    const std::array<SymTensor, 3> out{gq, gk, gv};
    // dot(do, o), the products, dq from fp32.
    launch_attention(h, OpKind::kFlashAttentionBackward, in, out, attention_dims(q, k, causal),
                     causal, ctx.node.floats[0], 3 + group_sums(heads, kv),
                     window > 0 ? window_flops(q, k, window, 5) : -1, window);
    wide_v.reset();
    wide_k.reset();
    dq.reset();
  }
  ctx.set(0, std::move(gq));
  ctx.set(1, std::move(gk));
  ctx.set(2, std::move(gv));
}

/// Keys may be split over thread blocks that each leave a partial result, where one block a row
/// would leave the GPU empty (flash_attn/flash_api.cpp: num_splits_heuristic, on 132
/// multiprocessors).
std::int64_t key_splits(const SymTensor& q, const SymTensor& k) {
  const std::int64_t d = q->shape[3], tile = d <= 64 ? 256 : d <= 128 ? 128 : 64;
  const std::int64_t tiles = ceil_div(k->shape[2], tile);
  const std::int64_t rows = q->shape[0] * q->shape[1] * ((q->shape[2] + 63) / 64);
  constexpr std::int64_t kSlots = 2 * 132, kMostSplits = 128;
  if (static_cast<float>(rows) >= 0.8F * static_cast<float>(kSlots)) return 1;
  const auto per_split = [&](std::int64_t n) { return ceil_div(tiles, n); };
  const auto efficiency = [&](std::int64_t n) {
    if (n > 1 && per_split(n) == per_split(n - 1)) return 0.0F;  // The same as one split fewer.
    const float waves = static_cast<float>(rows * n) / static_cast<float>(kSlots);
    return waves / std::ceil(waves);
  };
  const std::int64_t most = std::min({kMostSplits, kSlots, tiles});
  float best = 0;
  for (std::int64_t n = 1; n <= most; ++n) best = std::max(best, efficiency(n));
  for (std::int64_t n = 1; n <= most; ++n) {
    if (efficiency(n) > 0 && static_cast<double>(efficiency(n)) >= 0.85 * static_cast<double>(best))
      return n;
  }
  return 1;
}

SymTensor flash(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v, bool causal,
                double dropout_p, double scale, std::int64_t window) {
  Record r(h, flash_backward, {&q, &k, &v});
  if (r) {
    r->ints = {causal ? 1 : 0, window};
    r->floats[0] = scale;
    r.save(k);
    r.save(q);
    r.save(v);
  }
  SymTensor o, lse, rng, unused;
  const std::array<SymTensor*, 4> kept{&o, &lse, &rng, &unused};
  if (!h.impl().take_kept(KeptOp::kAttention, kept)) {
    o = like_query(h, q, q->shape);
    lse = empty_result(h, {q->shape[0], q->shape[1], q->shape[2]}, DType::kFloat32);
    const std::int64_t splits = dropout_p > 0 ? 1 : key_splits(q, k), d = q->shape[3];
    SymTensor lse_parts, parts;
    if (splits > 1) {
      lse_parts = empty_temporary(h, splits * lse->bytes());
      parts = empty_temporary(h, splits * lse->bytes() * round_up(d, d <= 128 ? 32 : 64));
    }
    rng = empty_result(h, {2}, DType::kInt64);
    unused = empty_result(h, {1}, DType::kInt64);
    if (dropout_p > 0) rng = empty_result(h, {2}, DType::kInt64);
    const std::array<SymTensor, 3> operands{q, k, v};
    const std::array<SymTensor, 2> results{o, lse};
    launch_attention(h, OpKind::kFlashAttention, operands, results, attention_dims(q, k, causal),
                     causal, scale, splits > 1 ? 2 : 1,
                     window > 0 ? window_flops(q, k, window, 2) : -1, window);
    lse_parts.reset();
    parts.reset();
    h.impl().offer_kept(KeptOp::kAttention, kept);
  }
  r.attach(o);
  if (r) {
    r.save_output(lse);
    r.save_output(o);
    r.save_output(rng);
    r.save_output(unused);
  }
  // What was not saved goes in the order of the results.
  lse.reset();
  rng.reset();
  unused.reset();
  return o;
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
                     std::span(out).first(gmask ? 4 : 3), attention_dims(q, k, causal, sizes / 5),
                     causal, ctx.node.floats[0], kernels, product_flops(q, k, causal, sizes));
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

SymTensor efficient(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v,
                    const SymTensor& mask, bool causal, double dropout_p, double scale) {
  Record r(h, efficient_backward, {&q, &k, &v, &mask});
  if (r) {
    r->ints = {causal ? 1 : 0, mask ? 1 : 0, dropout_p > 0 ? 1 : 0};
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
                     results, attention_dims(q, k, causal, sizes / 2), causal, scale, 1,
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

/// Head sizes are padded to a multiple of 8 first, the result is cut back.
SymTensor padded_flash(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v,
                       bool causal, double dropout_p, double scale, std::int64_t window) {
  const std::int64_t d = q->shape[3], missing = round_up(d, 8) - d;
  if (missing == 0) return flash(h, q, k, v, causal, dropout_p, scale, window);
  const double true_scale = scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(d));
  SymTensor q8 = pad_end(h, q, -1, missing), k8 = pad_end(h, k, -1, missing),
            v8 = pad_end(h, v, -1, missing);
  SymTensor o = flash(h, q8, k8, v8, causal, dropout_p, true_scale, window);
  return slice(h, o, -1, 0, d);
}

/// transformers' flash_attention_forward: values are padded to the query's head size. What the
/// library refuses is refused.
SymTensor library_flash(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v,
                        const SymTensor& mask, bool causal, double dropout_p, double scale,
                        std::int64_t window) {
  const auto refuse = [&](const std::string& what) {
    throw HostRefusal(h.program().program().scopes[h.scope().value],
                      "flash-attn's functions do not take " + what, "--attention flash (SDPA)");
  };
  const std::int64_t d = q->shape[3], d_v = v->shape[3];
  if (size_of(q->dtype) != 2) refuse(std::string(name_of(q->dtype)) + " (16 bits only)");
  if (mask) refuse("a mask");
  if (std::max(d, d_v) > 256) refuse("heads of more than 256");
  const std::int64_t w = causal && window < k->shape[2] ? window : 0;
  if (d == d_v) return padded_flash(h, q, k, v, causal, dropout_p, scale, w);
  SymTensor wide = pad_end(h, v, -1, d - d_v);
  return slice(h, padded_flash(h, q, k, wide, causal, dropout_p, scale, w), -1, 0, d_v);
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
    return eager_attention(h, q, k, v, added, causal, dropout_p, scale);
  }
  if (by_ops && !mask && !packed) return math_attention(h, q, k, v, causal, dropout_p, scale);
  if (!mask && !packed) return efficient(h, q, k, v, mask, causal, dropout_p, scale);
  SymTensor wide_k = repeat_to_heads(h, k, q->shape[1]),
            wide_v = repeat_to_heads(h, v, q->shape[1]);
  SymTensor added = additive_mask(h, packed ? packed_mask(h, q->shape[2]) : mask, q);
  SymTensor o = efficient(h, q, wide_k, wide_v, added, false, dropout_p, scale);
  added.reset();
  wide_k.reset();  // The frame's locals, in their order.
  wide_v.reset();
  return o;
}

}  // namespace foreshard
