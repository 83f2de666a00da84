// torchao's Float8Linear without torch.compile (float8_linear.py: matmul_with_hp_or_float8_args):
// input and weight are saved as they came and cast anew for each product; a product copies operands
// that do not lie by rows (first) and by columns (second).

#include "schedules/planner/recipes/float8.h"

namespace foreshard {
namespace {

enum class Scaling : std::uint8_t { kTensor, kColumns, kRows };  ///< kRows: one for each row.

/// Float8TrainingTensor.
struct Scaled {
  SymTensor data, scale;
  bool axiswise = false;

  void drop() {
    data.reset();
    scale.reset();
  }
};

bool scales_rows(const Host& h) {
  return h.config().float8 == Float8Kind::kRowwise ||
         h.config().float8 == Float8Kind::kRowwiseHighPrecision;
}

DType gradient_dtype(const Host& h) {
  return scales_rows(h) ? DType::kFloat8E4M3 : DType::kFloat8E5M2;
}

Scaled swapped_both(Host& h, const Scaled& t) {
  return {swapped(h, t.data), t.axiswise ? swapped(h, t.scale) : t.scale, t.axiswise};
}

/// reshape(-1, last): a view, or a copy where the rows do not lie so.
SymTensor row_view(Host& h, const SymTensor& t) {
  if (t->shape.rank == 2) return t;
  const Shape rows{t->numel / t->shape[-1], t->shape[-1]};
  std::array<std::int64_t, kMaxRank> stride{};
  if (view_strides(*t, rows, stride)) return raw_view(h, t, rows, stride, t->offset);
  return raw_view(h, contiguous(h, t), rows);
}

/// hp_tensor_to_float8_dynamic.
Scaled to_float8(Host& h, const SymTensor& t, DType dtype, Scaling scaling) {
  const Float8Owner owner{result_category(h), {}};
  Scaled q;
  {
    SymTensor amax;
    if (scaling == Scaling::kTensor) {
      amax = float8_amax(h, t, owner);
    } else {
      amax = float8_amax_along(h, t, scaling == Scaling::kRows ? -1 : 0, owner);
      q.axiswise = true;
    }
    q.scale = float8_scale(h, amax, scales_rows(h), owner);
  }
  q.data = float8_cast(h, t, q.scale, dtype, owner);
  return q;
}

bool lies_by_rows(const SymTensor& t) { return t->stride[0] > t->stride[1] && t->stride[1] == 1; }

SymTensor reciprocal_of(Host& h, const SymTensor& scale) {
  SymTensor y = empty_result(h, scale->shape, DType::kFloat32);
  LaunchRequest q;
  const double exponent = -1.0;
  q.op = OpKind::kPow;
  q.inputs = {&scale, 1};
  q.outputs = {&y, 1};
  q.attributes = {&exponent, 1};
  h.launch(q);
  return y;
}

/// scale.repeat(n): one scale for each column of a tensor that has one for all.
SymTensor repeated(Host& h, const SymTensor& scale, std::int64_t n) {
  SymTensor y = empty_result(h, {1, n}, DType::kFloat32);
  h.launch(OpKind::kCopy, {scale}, {y});
  return y;
}

struct ProductKind {
  bool fast_accumulation = false;
  bool weight_gradient = false;
};

/// torch._scaled_mm: a [m, k] by rows, b [k, n] by columns.
SymTensor scaled_mm(Host& h, const SymTensor& a, const SymTensor& b, DType result, bool by_row,
                    bool weight_gradient) {
  const std::int64_t m = a->shape[0], k = a->shape[1], n = b->shape[1];
  SymTensor c = empty_result(h, {m, n}, result);
  blas_workspace(h, true);
  LaunchRequest q;
  const std::array<SymTensor, 2> in{a, b};
  q.op = OpKind::kMatmul;
  q.inputs = in;
  q.outputs = {&c, 1};
  q.dims = {m, n, k, 1, weight_gradient ? kWeightGradientProduct : 0, by_row ? kRowScales : 0};
  q.dtype = a->dtype;
  q.dtype_given = true;
  h.launch(q);
  return c;
}

/// addmm_float8_unwrapped. Scales of rows without fast accumulation are applied to the result of a
/// product without scales.
SymTensor unscaled_product(Host& h, const Scaled& a, const Scaled& b, const ProductKind& kind,
                           DType result) {
  SymTensor a_inverse = reciprocal_of(h, a.scale), b_inverse = reciprocal_of(h, b.scale), after;
  const bool by_row = a.axiswise && b.axiswise;
  if (by_row && !kind.fast_accumulation) {
    after = empty_result(h, {a.data->shape[0], b.data->shape[1]}, DType::kFloat32);
    h.launch(OpKind::kMul, {a_inverse, b_inverse}, {after});
    for (SymTensor* inverse : {&a_inverse, &b_inverse}) {
      SymTensor one = empty_result(h, Shape(), DType::kFloat32);
      h.launch(OpKind::kFill, {}, {one}, {1.0});
      *inverse = std::move(one);
    }
  }
  const DType made = by_row ? DType::kBFloat16 : result;
  SymTensor c =
      scaled_mm(h, a.data, b.data, made, by_row && kind.fast_accumulation, kind.weight_gradient);
  if (after) h.launch(OpKind::kMulInPlace, {c, after}, {c});
  if (made != result) c = cast(h, c, result);
  a_inverse.reset();
  b_inverse.reset();
  return c;
}

/// float8_mm.
SymTensor float8_mm(Host& h, Scaled a, Scaled b, const ProductKind& kind, DType result) {
  if (!lies_by_rows(a.data)) a.data = contiguous(h, a.data);
  if (lies_by_rows(b.data)) b.data = swapped(h, contiguous(h, swapped(h, b.data)));
  if (a.axiswise && !b.axiswise) {
    b.scale = repeated(h, b.scale, b.data->shape[1]);
    b.axiswise = true;
  }
  SymTensor c = unscaled_product(h, a, b, kind, result);
  a.drop();
  b.drop();
  return c;
}

SymTensor high_precision_product(Host& h, const SymTensor& a, const SymTensor& b) {
  SymTensor c = empty_result(h, {a->shape[0], b->shape[1]}, a->dtype);
  blas_workspace(h, false);
  LaunchRequest q;
  const std::array<SymTensor, 2> in{a, b};
  q.op = OpKind::kMatmul;
  q.inputs = in;
  q.outputs = {&c, 1};
  q.dims = {a->shape[0], b->shape[1], a->shape[1], 1, kWeightGradientProduct, 0};
  h.launch(q);
  return c;
}

/// The weight [in, out] in 8 bits: gathered so, or cast now.
Scaled quantised_weight(Host& h, const SymTensor& w, Scaling scaling) {
  if (SymTensor data = gathered_in_8_bits(h, w)) return {data, data->scale, false};
  return to_float8(h, w, DType::kFloat8E4M3, scaling);
}

/// Edges and saved: x, weight [in, out]. Both gradients are computed, needed or not.
void eager_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  const bool by_row = scales_rows(h), wide = h.config().float8 == Float8Kind::kRowwiseHighPrecision;
  SymTensor x = ctx.saved(0), w = ctx.saved(1);
  SymTensor g = row_view(h, ctx.grad());
  Scaled g0 = to_float8(h, g, gradient_dtype(h), by_row ? Scaling::kRows : Scaling::kTensor);
  Scaled w8 = quantised_weight(h, w, by_row && !wide ? Scaling::kRows : Scaling::kTensor);
  SymTensor gx = float8_mm(h, g0, swapped_both(h, w8), {}, g->dtype);
  SymTensor rows = row_view(h, x);
  SymTensor gw;
  Scaled g1, x1;
  if (wide) {
    gw = high_precision_product(h, swapped(h, g), rows);
  } else {
    const Scaling columns = by_row ? Scaling::kColumns : Scaling::kTensor;
    g1 = to_float8(h, g, gradient_dtype(h), columns);
    x1 = to_float8(h, rows, DType::kFloat8E4M3, columns);
    gw = float8_mm(h, swapped_both(h, g1), x1, {false, true}, g->dtype);
  }
  if (ctx.needs(0)) ctx.set(0, x->shape.rank == 2 ? std::move(gx) : raw_view(h, gx, x->shape));
  if (ctx.needs(1)) ctx.set(1, swapped(h, gw));
  g0.drop();
  w8.drop();
  x.reset();
  w.reset();
  ctx.drop_saved();
  rows.reset();
  g1.drop();
  x1.drop();
  // A Python function lets go of the incoming gradient before the engine converts its results (to
  // gradients of fp32 weights under autocast).
  g.reset();
  ctx.grad().reset();
}

}  // namespace

bool float8_is_eager(const ParallelConfig& c) {
  return !c.compile && c.float8 != Float8Kind::kNone && c.float8 != Float8Kind::kDelayed;
}

SymTensor float8_linear_eager(Host& h, const SymTensor& x, const SymTensor& weight,
                              const SymTensor& bias) {
  const SymTensor w = transpose(h, weight, 0, 1);
  Shape shape = x->shape;
  shape[-1] = weight->shape[0];
  SymTensor y;
  {
    Record r(h, eager_backward, {&x, &w});
    {
      const NoGradGuard no_grad(h);
      const bool by_row = scales_rows(h);
      Scaled x8 = to_float8(h, x, DType::kFloat8E4M3, by_row ? Scaling::kRows : Scaling::kTensor),
             w8 = quantised_weight(h, w, by_row ? Scaling::kColumns : Scaling::kTensor);
      Scaled rows{row_view(h, x8.data), x8.scale, x8.axiswise};
      if (x8.axiswise) rows.scale = row_view(h, x8.scale);
      const std::array<SymTensor*, 1> results{&y};
      if (!h.impl().take_kept(KeptOp::kProduct, results)) {
        y = float8_mm(h, rows, w8, {true, false}, x->dtype);
        h.impl().offer_kept(KeptOp::kProduct, results);
      }
      w8.drop();
      rows.drop();
      x8.drop();
      if (x->shape.rank != 2) y = raw_view(h, y, shape);
    }
    if (r) {
      r.save(x);
      r.save(w);
    }
    r.attach(y);
  }
  return bias ? add(h, y, bias) : y;
}

}  // namespace foreshard
