// FlashAttention-2 as SDPA launches it. flash-attn's own functions are planned as that kernel,
// which is made of their sources: equal results, saved tensors and scratch (not recorded: no GPU).

#include <algorithm>
#include <cmath>

#include "core/integers.h"
#include "models/ops/op_flops.h"
#include "schedules/planner/host/host_refusal.h"
#include "schedules/planner/recipes/attention_kernels.h"
#include "schedules/planner/recipes/recipe.h"
#include "schedules/planner/recipes/scratch.h"

namespace foreshard {
namespace {

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
                     window > 0 ? seen_flops(q, k, true, window, 5 * d) : -1, window);
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
                     window > 0 ? seen_flops(q, k, true, window, 2 * d) : -1, window);
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
}  // namespace

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
}  // namespace foreshard
