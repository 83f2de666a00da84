// Source: Liger-Kernel src/liger_kernel/ops/fused_linear_cross_entropy.py: one buffer of logits for
// all chunks; under autocast over other dtypes each product makes its own, in 16 bits, and sums of
// the weight's gradient stay in its dtype.

#include <algorithm>
#include <array>
#include <bit>

#include "core/integers.h"
#include "schedules/planner/recipes/recipe.h"
#include "schedules/planner/recipes/shape_check.h"
#include "schedules/planner/recipes/special.h"

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
  q.dtype = a->dtype;  // Of the factors: sums of 16-bit products may be kept in fp32.
  q.dtype_given = true;
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

/// One call: the chunks of x against the weight, and the gradients they add up to.
class Chunks {
 public:
  Chunks(Host& h, const SymTensor& x, const SymTensor& weight, const SymTensor& gx,
         const SymTensor& gw, std::int64_t rows)
      : h_(h), weight_(weight), gx_(gx), gw_(gw) {
    // mm(out=...) where torch.matmul would take the operands as they are (_can_use_mm_out).
    const bool as_they_are =
        x->dtype == weight->dtype && (!h.impl().autocast || autocast_dtype(h) == x->dtype);
    if (as_they_are) storage_ = empty_result(h, {rows, weight->shape[0]}, x->dtype);
  }

  /// Logits of rows of x; the caller turns them into their gradient in place.
  SymTensor logits(const SymTensor& part) {
    if (storage_) {
      const SymTensor y = rows_of(h_, storage_, 0, part->shape[0]);
      product_into(h_, part, swapped(h_, weight_), y, false);
      return y;
    }
    // weight.t() is no leaf: its cast is made for each chunk.
    SymTensor w = autocast_low(h_, swapped(h_, weight_)), p = autocast_low(h_, part);
    SymTensor y = empty_result(h_, {part->shape[0], weight_->shape[0]}, p->dtype);
    product_into(h_, p, w, y, false);
    return y;
  }

  void add_gradients(const SymTensor& grad_logits, const SymTensor& part, std::int64_t from) {
    const SymTensor rows = rows_of(h_, gx_, from, part->shape[0]);
    if (storage_) {
      product_into(h_, grad_logits, weight_, rows, false);
    } else {
      const SymTensor w = autocast_low(h_, weight_);
      const SymTensor product = empty_result(h_, rows->shape, grad_logits->dtype);
      product_into(h_, grad_logits, w, product, false);
      h_.launch(OpKind::kCopy, {product}, {rows});
    }
    if (gw_)
      product_into(h_, swapped(h_, grad_logits), cast(h_, part, grad_logits->dtype), gw_, true);
  }

 private:
  Host& h_;
  const SymTensor &weight_, &gx_, &gw_;
  SymTensor storage_;
};

}  // namespace

SymTensor fused_linear_cross_entropy(Host& h, const SymTensor& x_in, const SymTensor& targets_in,
                                     const SymTensor& weight) {
  const std::int64_t width = x_in->shape[-1], tokens = x_in->numel / width,
                     classes = weight->shape[0];
  check_targets(h, x_in, targets_in);
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
  {
    Chunks chunks(h, x, weight, gx, gw, chunk);
    for (std::int64_t from = 0; from < tokens; from += chunk) {
      const std::int64_t n = std::min(chunk, tokens - from);
      const SymTensor part = rows_of(h, x, from, n), logits = chunks.logits(part);
      h.launch(OpKind::kFusedCrossEntropy, {logits, rows_of(h, targets, from, n)},
               {logits, rows_of(h, losses, from, n)}, {1.0 / static_cast<double>(tokens)});
      chunks.add_gradients(logits, part, from);
    }
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
