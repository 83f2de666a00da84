// Source: Liger-Kernel src/liger_kernel/ops/fused_linear_cross_entropy.py (one buffer of logits for
// all chunks).

#include <algorithm>
#include <array>
#include <bit>

#include "core/integers.h"
#include "schedules/planner/recipes/recipe.h"

namespace foreshard {
namespace {

/// Saved: gradient of x, of the weight. Both are scaled in place unless the incoming gradient is 1.
void fused_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  int i = 0;
  SymTensor gx = ctx.saved(i++), gw = ctx.needs(1) ? ctx.saved(i++) : SymTensor();
  SymTensor one = empty_result(h, Shape(), ctx.grad()->dtype);
  h.launch(OpKind::kFill, {}, {one}, {1.0});
  one.reset();
  for (const SymTensor& t : {gx, gw}) {
    if (t) h.launch(OpKind::kMulInPlace, {t, ctx.grad()}, {t});
  }
  if (ctx.needs(0)) ctx.set(0, raw_view(h, gx, ctx.node.shape));
  if (ctx.needs(1)) ctx.set(1, std::move(gw));
}

SymTensor rows_of(Host& h, const SymTensor& t, std::int64_t from, std::int64_t count) {
  Shape s = t->shape;
  s[0] = count;
  return raw_view(h, t, s, t->stride, t->offset + from * t->stride[0]);
}

void product_into(Host& h, const SymTensor& a, const SymTensor& b, const SymTensor& c, bool adds) {
  blas_workspace(h, false);
  LaunchRequest q;
  const std::array<SymTensor, 3> in{c, a, b};
  q.op = adds ? OpKind::kMatmulBias : OpKind::kMatmul;
  q.inputs = std::span<const SymTensor>(in).subspan(adds ? 0 : 1);
  q.outputs = {&c, 1};
  // Adding: a weight gradient.
  q.dims = {c->shape[0], c->shape[1], a->shape[1], 1, adds ? kWeightGradientProduct : 0, 0};
  h.launch(q);
}

SymTensor zeros(Host& h, const Shape& s, DType dtype) {
  SymTensor t = empty_result(h, s, dtype);
  h.launch(OpKind::kFill, {}, {t}, {0.0});
  return t;
}

/// Number of targets that count; the script reads it back.
void count_targets(Host& h, const SymTensor& targets, SymTensor& mask) {
  mask = empty_result(h, targets->shape, DType::kBool);
  h.launch(OpKind::kCompare, {targets}, {mask}, {5.0, -100.0});
  SymTensor count = empty_result(h, Shape(), DType::kInt64);
  h.launch(OpKind::kSum, {mask}, {count});
}

}  // namespace

SymTensor fused_linear_cross_entropy(Host& h, const SymTensor& x_in, const SymTensor& targets_in,
                                     const SymTensor& weight) {
  const std::int64_t width = x_in->shape[-1], tokens = x_in->numel / width,
                     classes = weight->shape[0];
  Record r(h, fused_backward, {&x_in, &weight});
  const NoGradGuard no_grad(h);
  const SymTensor x = raw_view(h, x_in, {tokens, width}),
                  targets = raw_view(h, targets_in, {tokens});
  // As many tokens a chunk as make its logits about as large as x, in powers of two.
  const std::int64_t parts = ceil_div(classes, width);
  const auto power =
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(ceil_div(tokens, parts))));
  const std::int64_t chunk = std::min(power, tokens);
  SymTensor gx = zeros(h, {tokens, width}, x->dtype);
  SymTensor gw = r.needs(1) ? zeros(h, weight->shape, weight->dtype) : SymTensor();
  SymTensor losses = zeros(h, {tokens}, DType::kFloat32), mask;
  count_targets(h, targets, mask);
  SymTensor storage = empty_result(h, {chunk, classes}, x->dtype);
  for (std::int64_t from = 0; from < tokens; from += chunk) {
    const std::int64_t n = std::min(chunk, tokens - from);
    const SymTensor part = rows_of(h, x, from, n), logits = rows_of(h, storage, 0, n);
    product_into(h, part, swapped(h, weight), logits, false);
    h.launch(OpKind::kFusedCrossEntropy, {logits, rows_of(h, targets, from, n)},
             {logits, rows_of(h, losses, from, n)}, {1.0 / static_cast<double>(tokens)});
    product_into(h, logits, weight, rows_of(h, gx, from, n), false);
    if (gw) product_into(h, swapped(h, logits), part, gw, true);
  }
  SymTensor loss = empty_result(h, Shape(), DType::kFloat32);
  h.launch(OpKind::kSum, {losses}, {loss});
  r.attach(loss);
  if (r) {
    r->shape = x_in->shape;
    r.save_output(gx);
    if (gw) r.save_output(gw);
  }
  return loss;
}

}  // namespace foreshard
