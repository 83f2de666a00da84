// Matrix products: linear layers and batched products.

#include "core/op_kind.h"
#include "schedules/planner/host/host_refusal.h"
#include "schedules/planner/recipes/recipe.h"
#include "schedules/planner/recipes/shape_check.h"

namespace foreshard {
namespace {

/// Leading dimensions folded into rows; no autograd node.
SymTensor fold(Host& h, const SymTensor& x) {
  if (x->shape.rank == 2) return x;
  const Shape rows{x->numel / x->shape[-1], x->shape[-1]};
  std::array<std::int64_t, kMaxRank> stride{};
  if (view_strides(*x, rows, stride)) return raw_view(h, x, rows, stride, x->offset);
  return raw_view(h, contiguous(h, x), rows);
}

/// dims[4] of a product of activations. Others: kWeightGradientProduct; -n where a mask lets n of
/// its FLOPs through.
constexpr std::int64_t kActivations = 0;

void launch_product(Host& h, const SymTensor& a, const SymTensor& b, const SymTensor& c,
                    const SymTensor& bias = {}, std::int64_t use = kActivations) {
  check_product(h, a, b, bias);
  LaunchRequest q;
  const std::array<SymTensor, 3> with_bias{bias, a, b};
  q.op = bias ? OpKind::kMatmulBias : OpKind::kMatmul;
  q.inputs = std::span<const SymTensor>(with_bias).subspan(bias ? 0 : 1);
  q.outputs = {&c, 1};
  q.dims = {
      c->shape[-2], c->shape[-1], a->shape[-1], c->numel / (c->shape[-2] * c->shape[-1]), use, 0};
  h.launch(q);
}

/// Product without autograd: result, workspace, kernel.
SymTensor product(Host& h, const SymTensor& a, const SymTensor& b, const SymTensor& bias = {},
                  std::int64_t use = kActivations) {
  SymTensor c = empty_result(h, {a->shape[0], b->shape[1]}, a->dtype);
  blas_workspace(h, static_cast<bool>(bias));
  launch_product(h, a, b, c, bias, use);
  return c;
}

/// The product of a linear layer's forward: an operator that selective checkpointing may keep.
SymTensor forward_product(Host& h, const SymTensor& a, const SymTensor& b) {
  SymTensor c;
  const std::array<SymTensor*, 1> results{&c};
  if (h.impl().take_kept(KeptOp::kProduct, results)) return c;
  c = product(h, a, b);
  h.impl().offer_kept(KeptOp::kProduct, results);
  return c;
}

/// Weight gradient in the weight's layout: [out, in] = grad^T x; seen through the transpose's view
/// node.
SymTensor weight_gradient(Host& h, const SymTensor& g, const SymTensor& x) {
  SymTensor gt = swapped(h, g);
  SymTensor w = product(h, gt, x, {}, kWeightGradientProduct);
  return raw_view(h, w, w->shape);
}

/// mm(x, w) with w = weight.t(); edges: x, w. Saved: w (if x needs a gradient), x (if w does).
void mm_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  int i = 0;
  SymTensor w = ctx.needs(0) ? ctx.saved(i++) : SymTensor();
  SymTensor x = ctx.needs(1) ? ctx.saved(i++) : SymTensor();
  SymTensor g = contiguous(h, fold(h, ctx.grad()));
  // The gradient of w has w's layout: (grad^T x)^T.
  if (ctx.needs(1))
    ctx.set(1, swapped(h, product(h, swapped(h, g), fold(h, x), {}, kWeightGradientProduct)));
  if (ctx.needs(0)) {
    SymTensor gx = product(h, g, swapped(h, w));
    ctx.set(0, ctx.node.shape.rank == 2 ? std::move(gx) : raw_view(h, gx, ctx.node.shape));
  }
}

/// addmm(bias, x, weight.t()); edges: bias, x, weight.
void addmm_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  int i = 0;
  SymTensor x = ctx.needs(2) ? ctx.saved(i++) : SymTensor();
  SymTensor w = ctx.needs(1) ? ctx.saved(i++) : SymTensor();
  SymTensor g = contiguous(h, fold(h, ctx.grad()));
  if (ctx.needs(1)) ctx.set(1, product(h, g, w));
  if (ctx.needs(2)) ctx.set(2, weight_gradient(h, g, x));
  w.reset();
  x.reset();
  ctx.drop_saved();
  if (ctx.needs(0)) ctx.set(0, sum_rows(h, g, g->shape[0], {g->shape[1]}));
}

/// A bias added in place to the last dimension; edges: x, bias.
void add_bias_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  if (ctx.needs(1)) {
    const SymTensor g = contiguous(h, fold(h, ctx.grad()));
    ctx.set(1, sum_rows(h, g, g->shape[0], {g->shape[1]}));
  }
  if (ctx.needs(0)) ctx.set(0, ctx.grad());
}

/// Can be seen as rows of its last dimension without a copy.
bool folds(const SymTensorImpl& x) {
  std::array<std::int64_t, kMaxRank> stride{};
  return view_strides(x, {x.numel / x.shape[-1], x.shape[-1]}, stride);
}

Shape with_last(const Shape& s, std::int64_t last) {
  Shape y = s;
  y[-1] = last;
  return y;
}

}  // namespace

namespace {

/// LinearFunctionForZeroStage3.backward; edges: input, weight, bias.
void function_linear_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  const SymTensor x = ctx.saved(0), w = ctx.saved(1);
  if (ctx.node.saved_count() > 2) ctx.saved(2);
  const SymTensor& grad = ctx.grad();
  const SymTensor g = contiguous(h, fold(h, grad));
  if (ctx.needs(0)) {
    SymTensor gx = product(h, g, w);
    ctx.set(0, grad->shape.rank == 2 ? std::move(gx)
                                     : h.view_as(gx, with_last(grad->shape, w->shape[1])));
  }
  if (ctx.needs(1)) ctx.set(1, product(h, swapped(h, g), fold(h, x)));
  if (ctx.node.edges() > 2 && ctx.needs(2)) ctx.set(2, sum_rows(h, g, g->shape[0], {g->shape[1]}));
}

/// LinearFunctionForZeroStage3.forward: matmul(x, weight.t()), then the bias in place; addmm for
/// matrices.
SymTensor function_linear(Host& h, const SymTensor& x, const SymTensor& weight,
                          const SymTensor& bias) {
  Record r = bias ? Record(h, function_linear_backward, {&x, &weight, &bias})
                  : Record(h, function_linear_backward, {&x, &weight});
  SymTensor y;
  {
    const NoGradGuard no_grad(h);
    const SymTensor w = swapped(h, weight);
    if (bias && x->shape.rank == 2) {
      y = product(h, x, w, bias);
    } else {
      y = forward_product(h, fold(h, x), w);
      if (bias) h.launch(OpKind::kAddInPlace, {y, bias}, {y});
    }
    if (x->shape.rank != 2) y = h.view_as(y, with_last(x->shape, weight->shape[0]));
  }
  if (!r) return y;
  r.save(x);
  r.save(weight);
  if (bias) r.save(bias);
  r.attach(y);
  return y;
}

}  // namespace

SymTensor linear(Host& h, const SymTensor& x_in, const SymTensor& weight, const SymTensor& bias) {
  if (x_in->dtype != weight->dtype) {
    throw HostRefusal(
        h.program().program().scopes[h.scope().value],
        "input and weight have different dtypes (" + std::string(name_of(x_in->dtype)) + " and " +
            std::string(name_of(weight->dtype)) + ")",
        "cast the inputs, or give the unit the same dtype; under adapters --autocast yes "
        "or --lora-dtype base");
  }
  if (h.function_linear()) return function_linear(h, x_in, weight, bias);
  if (float8_applies(h, weight)) return float8_linear(h, x_in, weight, bias);
  const std::int64_t out = weight->shape[0];
  // at::linear flattens a batch of contiguous matrices; of others it takes the product and adds the
  // bias after it.
  const bool adds_bias = bias && x_in->shape.rank == 3 && !is_contiguous(*x_in);
  SymTensor y;
  if (bias && !adds_bias) {
    // addmm(bias, x.reshape(rows), weight.t()): the view of x is recorded before the transpose, so
    // it goes back after it.
    SymTensor x = x_in;
    if (x->shape.rank != 2) x = reshape(h, x, {x->numel / x->shape[-1], x->shape[-1]});
    Record r(h, addmm_backward, {&bias, &x, &weight});
    if (r) r->late_edge = 2;  // Through weight.t().
    if (r.needs(2)) r.save(x);
    if (r.needs(1)) r.save(weight);
    y = product(h, x, swapped(h, weight), bias);
    r.attach(y);
  } else {
    // matmul(x, weight.t()): the transpose is recorded first; the view of x goes back at once and
    // needs no node of its own.
    SymTensor w = transpose(h, weight, 0, 1);
    SymTensor x = x_in;
    if (x->shape.rank != 2 && !folds(*x))
      x = reshape(h, x, {x->numel / x->shape[-1], x->shape[-1]});
    Record r(h, mm_backward, {&x, &w});
    if (r) r->shape = x->shape;
    if (r.needs(0)) r.save(w);
    if (r.needs(1)) r.save(x);
    y = forward_product(h, fold(h, x), w);
    r.attach(y);
  }
  if (x_in->shape.rank == 2) return y;
  // _unsafe_view or view of the result: the gradient is folded again by the product's backward.
  SymTensor z = h.view_as(y, with_last(x_in->shape, out), y->offset);
  z->requires_grad = y->requires_grad;
  z->grad_fn = y->grad_fn;
  if (adds_bias) {
    Record r(h, add_bias_backward, {&z, &bias});
    h.launch(OpKind::kAddInPlace, {z, bias}, {z});
    r.attach(z);
  }
  return z;
}

namespace {

/// Conv1D: addmm(bias, x, weight), weight [in, out]; edges: bias, x, weight.
void conv1d_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  int i = 0;
  SymTensor x = ctx.needs(2) ? ctx.saved(i++) : SymTensor();
  SymTensor w = ctx.needs(1) ? ctx.saved(i++) : SymTensor();
  SymTensor g = contiguous(h, fold(h, ctx.grad()));
  if (ctx.needs(1)) ctx.set(1, product(h, g, swapped(h, w)));
  if (ctx.needs(2)) ctx.set(2, product(h, swapped(h, x), g, {}, kWeightGradientProduct));
  w.reset();
  x.reset();
  ctx.drop_saved();
  if (ctx.needs(0)) ctx.set(0, sum_rows(h, g, g->shape[0], {g->shape[1]}));
}

}  // namespace

SymTensor conv1d_linear(Host& h, const SymTensor& x_in, const SymTensor& weight,
                        const SymTensor& bias) {
  SymTensor x = view(h, x_in, {x_in->numel / x_in->shape[-1], x_in->shape[-1]});
  SymTensor y;
  {
    Record r(h, conv1d_backward, {&bias, &x, &weight});
    if (r.needs(2)) r.save(x);
    if (r.needs(1)) r.save(weight);
    y = product(h, x, weight, bias);
    r.attach(y);
  }
  return view(h, y, with_last(x_in->shape, weight->shape[1]));
}

namespace {

/// `seen`: FLOPs that a mask lets through; 0: all.
SymTensor batched(Host& h, const SymTensor& a, const SymTensor& b, std::int64_t seen) {
  Shape s = a->shape;
  s[-1] = b->shape[-1];
  SymTensor c = empty_result(h, s, a->dtype);
  blas_workspace(h, false);
  launch_product(h, a, b, c, {}, seen > 0 ? -seen : kActivations);
  return c;
}

SymTensor swapped_last(Host& h, const SymTensor& t) {
  Shape s = t->shape;
  std::array<std::int64_t, kMaxRank> stride = t->stride;
  const int n = s.rank;
  std::swap(s[n - 1], s[n - 2]);
  std::swap(stride[static_cast<std::size_t>(n - 1)], stride[static_cast<std::size_t>(n - 2)]);
  return raw_view(h, t, s, stride, t->offset);
}

/// bmm(self, mat2). Saved: mat2 (if self needs a gradient), self (if mat2 does).
void bmm_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  int i = 0;
  SymTensor b = ctx.needs(0) ? ctx.saved(i++) : SymTensor();
  SymTensor a = ctx.needs(1) ? ctx.saved(i++) : SymTensor();
  const std::int64_t seen = ctx.node.ints[0];
  if (ctx.needs(1)) ctx.set(1, batched(h, swapped_last(h, a), ctx.grad(), seen));
  if (ctx.needs(0)) ctx.set(0, batched(h, ctx.grad(), swapped_last(h, b), seen));
}

/// _unsafe_view of a batched result: its gradient is folded again, by a copy if need be.
void unfold_backward(BackwardContext& ctx);

/// bmm takes operands whose last two dimensions are dense in one order; expand().reshape() copies
/// others.
SymTensor foldable(Host& h, const SymTensor& t) {
  std::array<std::int64_t, kMaxRank> stride{};
  if (t->shape.rank <= 3) return t;
  const Shape folded{t->numel / (t->shape[-1] * t->shape[-2]), t->shape[-2], t->shape[-1]};
  return view_strides(*t, folded, stride) ? t : contiguous(h, t);
}

void unfold_backward(BackwardContext& ctx) { ctx.set(0, foldable(ctx.host, ctx.grad())); }

}  // namespace

namespace {

/// mm(a, b) of two matrices; edges and saved as bmm. A gradient of b that lies transposed is made
/// transposed.
void plain_mm_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  int i = 0;
  SymTensor b = ctx.needs(0) ? ctx.saved(i++) : SymTensor();
  SymTensor a = ctx.needs(1) ? ctx.saved(i++) : SymTensor();
  if (ctx.needs(1)) {
    const SymTensor& g = ctx.grad();
    ctx.set(1, ctx.node.ints[0] != 0 ? swapped(h, product(h, swapped(h, g), a))
                                     : product(h, swapped(h, a), g));
  }
  if (ctx.needs(0)) ctx.set(0, product(h, ctx.grad(), swapped(h, b)));
}

/// A matrix on the right takes every row of `a` at once (should_fold of
/// aten/src/ATen/native/LinearAlgebra.cpp).
SymTensor folded_matmul(Host& h, const SymTensor& a_in, const SymTensor& b) {
  const std::int64_t width = a_in->shape[-1];
  SymTensor a = a_in->shape.rank == 2 ? a_in : reshape(h, a_in, {a_in->numel / width, width});
  Record r(h, plain_mm_backward, {&a, &b});
  if (r) r->ints[0] = b->stride[0] == 1 ? 1 : 0;
  if (r.needs(0)) r.save(b);
  if (r.needs(1)) r.save(a);
  SymTensor c = product(h, a, b);
  r.attach(c);
  return a_in->shape.rank == 2 ? c : view(h, c, with_last(a_in->shape, b->shape[1]));
}

}  // namespace

SymTensor matmul(Host& h, const SymTensor& a_in, const SymTensor& b_in, std::int64_t seen) {
  if (b_in->shape.rank == 2) return folded_matmul(h, a_in, b_in);
  SymTensor a = foldable(h, a_in), b = foldable(h, b_in);
  Record r(h, bmm_backward, {&a, &b});
  if (r.needs(0)) r.save(b);
  if (r.needs(1)) r.save(a);
  if (r) r->ints[0] = seen;
  SymTensor c = batched(h, a, b, seen);
  r.attach(c);
  if (c->shape.rank <= 3) return c;
  Record unfold(h, unfold_backward, {&c});
  SymTensor z = h.view_as(c, c->shape);
  unfold.attach(z);
  return z;
}

}  // namespace foreshard
