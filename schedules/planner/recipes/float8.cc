// Linear layers with 8-bit products: torchao's under torch.compile, which fuses the casts
// (float8_linear.py: matmul_with_hp_or_float8_args, float8_scaling_utils.py), and Transformer
// Engine's (module/linear.py, cast_transpose). A product takes its first operand by rows and its
// second by columns, so that backward needs transposed 8-bit copies of input, weight and output
// gradient. Without torch.compile: float8_eager.cc.

#include "schedules/planner/recipes/float8.h"

namespace foreshard {
namespace {

constexpr DType kForwardDType = DType::kFloat8E4M3, kGradientDType = DType::kFloat8E5M2;

bool rowwise(Float8Kind k) {
  return k == Float8Kind::kRowwise || k == Float8Kind::kRowwiseHighPrecision;
}

/// Casts `t`; tensor-wise scales need a pass for the largest element first, the other kinds find
/// theirs in the cast.
SymTensor quantize(Host& h, const SymTensor& t, DType dtype) {
  SymTensor q = h.empty(t->shape, dtype, BufferCategory::kForwardTemporary);
  if (h.config().float8 != Float8Kind::kTensorwise) {
    // By row: a pass over the row stays in the cache of its block.
    h.launch(OpKind::kQuantizeFp8, {t}, {q});
    return q;
  }
  const SymTensor amax = h.empty({1}, DType::kFloat32, BufferCategory::kForwardTemporary);
  h.launch(OpKind::kAmax, {t}, {amax});
  h.launch(OpKind::kQuantizeFp8, {t, amax}, {q});
  return q;
}

/// The same values, columns first: a copy of the 8-bit tensor, or for row-wise scales a cast along
/// the other dimension.
SymTensor quantize_transposed(Host& h, const SymTensor& high, const SymTensor& quantized,
                              DType dtype) {
  SymTensor q = h.empty({high->shape[1], high->shape[0]}, dtype, BufferCategory::kForwardTemporary);
  const bool copy = quantized && !rowwise(h.config().float8);
  h.launch(OpKind::kQuantizeFp8, {copy ? quantized : high}, {q});
  return q;
}

/// Delayed scaling: one kernel reads the tensor once and writes both layouts.
struct BothLayouts {
  SymTensor rows, columns;
};

BothLayouts cast_transpose(Host& h, const SymTensor& t, DType dtype) {
  BothLayouts b{h.empty(t->shape, dtype, BufferCategory::kForwardTemporary),
                h.empty({t->shape[1], t->shape[0]}, dtype, BufferCategory::kForwardTemporary)};
  h.launch(OpKind::kQuantizeFp8, {t}, {b.rows, b.columns});
  return b;
}

/// c[m, n] in the compute dtype.
SymTensor scaled_product(Host& h, const SymTensor& a, const SymTensor& b, std::int64_t m,
                         std::int64_t n, std::int64_t k, DType result, bool weight_gradient) {
  SymTensor c = empty_result(h, {m, n}, result);
  blas_workspace(h, true);
  LaunchRequest q;
  q.op = OpKind::kMatmul;
  const std::array<SymTensor, 2> in{a, b};
  q.inputs = in;
  q.outputs = {&c, 1};
  q.dims = {m, n, k, 1, weight_gradient ? kWeightGradientProduct : 0,
            rowwise(h.config().float8) ? kRowScales : 0};
  q.dtype = a->dtype;
  q.dtype_given = true;
  h.launch(q);
  return c;
}

SymTensor as_rows(Host& h, const SymTensor& x) {
  if (x->shape.rank == 2) return x;
  SymTensor c = contiguous(h, x);
  return raw_view(h, c, {c->numel / c->shape[-1], c->shape[-1]});
}

SymTensor weight_gradient(Host& h, Float8Kind kind, const SymTensor& g, const SymTensor& by_rows,
                          SymTensor& by_columns, const SymTensor& x) {
  const std::int64_t m = g->shape[0], n = g->shape[1];
  if (kind == Float8Kind::kDelayed)
    return scaled_product(h, by_columns, x, n, x->shape[0], m, g->dtype, true);
  const SymTensor rows = as_rows(h, x);
  const std::int64_t k = rows->shape[1];
  if (kind != Float8Kind::kRowwiseHighPrecision) {
    by_columns = quantize_transposed(h, g, by_rows, kGradientDType);
    const SymTensor xt = quantize_transposed(h, rows, {}, kForwardDType);
    return scaled_product(h, by_columns, xt, n, k, m, g->dtype, true);
  }
  SymTensor gw = empty_result(h, {n, k}, g->dtype);
  blas_workspace(h, false);
  LaunchRequest q;
  const std::array<SymTensor, 2> in{raw_view(h, g, {n, m}, {1, n}, g->offset), rows};
  q.op = OpKind::kMatmul;
  q.inputs = in;
  q.outputs = {&gw, 1};
  q.dims = {n, k, m, 1, kWeightGradientProduct, 0};
  h.launch(q);
  return gw;
}

/// Edges: x, weight. Saved: weight (if x needs a gradient), x (if weight does), or their 8-bit
/// columns [in, tokens] and [in, out].
void float8_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  const Float8Kind kind = h.config().float8;
  int i = 0;
  const SymTensor w = ctx.needs(0) ? ctx.saved(i++) : SymTensor();
  const SymTensor x = ctx.needs(1) ? ctx.saved(i++) : SymTensor();
  const SymTensor g = as_rows(h, ctx.grad());
  const std::int64_t m = g->shape[0], n = g->shape[1];
  SymTensor by_rows, by_columns;
  if (kind == Float8Kind::kDelayed) {
    BothLayouts both = cast_transpose(h, g, kGradientDType);
    by_rows = std::move(both.rows);
    by_columns = std::move(both.columns);
  } else {
    by_rows = quantize(h, g, kGradientDType);
  }
  if (ctx.needs(1)) ctx.set(1, weight_gradient(h, kind, g, by_rows, by_columns, x));
  by_columns.reset();
  if (ctx.needs(0)) {
    const SymTensor wt = kind == Float8Kind::kDelayed
                             ? w
                             : quantize_transposed(h, w, gathered_in_8_bits(h, w), kForwardDType);
    SymTensor gx = scaled_product(h, by_rows, wt, m, wt->shape[0], n, g->dtype, false);
    ctx.set(0, ctx.node.shape.rank == 2 ? std::move(gx) : raw_view(h, gx, ctx.node.shape));
  }
}

}  // namespace

bool float8_applies(Host& h, const SymTensor& weight) {
  if (h.config().float8 == Float8Kind::kNone || weight->shape.rank != 2) return false;
  if (weight->shape[0] % 16 != 0 || weight->shape[1] % 16 != 0)
    return false;  // Products take multiples of 16.
  const std::string& here = h.program().program().scopes[h.scope().value];
  for (const ModuleId b : h.model().roles.blocks) {
    const std::string& block = h.model().at(b).name;
    if (here.size() >= block.size() && here.compare(0, block.size(), block) == 0 &&
        (here.size() == block.size() || here[block.size()] == '.')) {
      return true;
    }
  }
  return false;
}

SymTensor gathered_in_8_bits(Host& h, const SymTensor& w) {
  if (w->storage->bytes >= w->bytes()) return {};
  SymTensor data = raw_view(h, w, w->shape, w->stride, w->offset);
  data->dtype = kForwardDType;
  return data;
}

SymTensor float8_linear(Host& h, const SymTensor& x, const SymTensor& weight,
                        const SymTensor& bias) {
  if (float8_is_eager(h.config())) return float8_linear_eager(h, x, weight, bias);
  const std::int64_t out = weight->shape[0];
  Shape shape = x->shape;
  shape[-1] = out;
  SymTensor y;
  {
    Record r(h, float8_backward, {&x, &weight});
    if (r) r->shape = x->shape;
    const SymTensor rows = as_rows(h, x);
    const bool delayed = h.config().float8 == Float8Kind::kDelayed;
    BothLayouts x8, w8;
    if (delayed) {
      x8 = cast_transpose(h, rows, kForwardDType);
      w8 = cast_transpose(h, weight, kForwardDType);
    }
    if (r.needs(0)) r.save(delayed ? w8.columns : weight);
    if (r.needs(1)) r.save(delayed ? x8.columns : x);
    const std::array<SymTensor*, 1> results{&y};
    if (!h.impl().take_kept(KeptOp::kProduct, results)) {
      if (!delayed) {
        x8.rows = quantize(h, rows, kForwardDType);
        w8.rows = gathered_in_8_bits(h, weight);
        if (!w8.rows) w8.rows = quantize(h, weight, kForwardDType);
      }
      y = scaled_product(h, x8.rows, w8.rows, rows->shape[0], out, rows->shape[1], x->dtype, false);
      h.impl().offer_kept(KeptOp::kProduct, results);
    }
    r.attach(y);
  }
  if (x->shape.rank != 2) {
    SymTensor z = h.view_as(y, shape, y->offset);
    z->requires_grad = y->requires_grad;
    z->grad_fn = y->grad_fn;
    y = std::move(z);
  }
  return bias ? add(h, y, bias) : y;
}

}  // namespace foreshard
