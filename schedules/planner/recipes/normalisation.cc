// Layer norm and RMS norm, fused: statistics are fp32, one value a row.

#include <algorithm>

#include "schedules/planner/recipes/recipe.h"
#include "schedules/planner/recipes/shape_check.h"

namespace foreshard {
namespace {

Shape rows_of(const Shape& s) {
  Shape r = s;
  r[-1] = 1;
  return r;
}

/// Statistics and result in one kernel where rows are read four elements at a time, else in two.
void launch_norm(Host& h, OpKind op, std::span<const SymTensor> in, std::span<const SymTensor> out,
                 double eps) {
  LaunchRequest q;
  q.op = op;
  q.inputs = in;
  q.outputs = out;
  q.attributes = {&eps, 1};
  q.kernels = in[0]->shape[-1] % 4 == 0 ? 1 : 2;
  h.launch(q);
}

/// Gradients of weight and bias. Many short rows: partial sums of 32 rows each, added up in a
/// second pass that makes the result anew (aten/src/ATen/native/cuda/layer_norm_kernel.cu, 132
/// multiprocessors).
void gamma_gradients(BackwardContext& ctx, OpKind op, std::span<const SymTensor> inputs,
                     SymTensor* gw, SymTensor* gb) {
  Host& h = ctx.host;
  const SymTensor& x = inputs[1];
  const std::int64_t n = x->shape[-1], m = x->numel / n;
  std::vector<SymTensor*> wanted;
  std::vector<SymTensor> out;  // By position: none stands for a frozen weight before its bias.
  for (SymTensor* g : {gw, gb}) {
    if (g && *g) wanted.push_back(g);
    if (g) out.push_back(*g);
  }
  if (!out.back()) out.pop_back();
  LaunchRequest q;
  q.op = op;
  q.inputs = inputs;
  q.outputs = out;
  q.dtype = (*wanted[0])->dtype;
  q.dtype_given = true;
  if (m <= 64 * 1024 || n / 32 >= 132 / 2) {
    h.launch(q);
    return;
  }
  const std::int64_t blocks = (m + 31) / 32;
  std::vector<SymTensor> partial;
  for (const SymTensor* g : wanted) partial.push_back(empty_result(h, {blocks, n}, (*g)->dtype));
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    SymTensor sum = sum_rows_scratch(h, partial[k], (*wanted[k])->shape);
    q.kernels += scratch_of_row_reduction(blocks, n, 4).kernels();
    std::replace(out.begin(), out.end(), *wanted[k], sum);
    *wanted[k] = std::move(sum);
  }
  q.outputs = out;
  h.launch(q);
}

/// Edges: input, weight. Saved: input, weight?, rstd.
void rms_norm_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  const bool has_weight = ctx.node.edges() > 1;
  SymTensor x = ctx.saved(0);
  SymTensor w = has_weight ? ctx.saved(1) : SymTensor();
  SymTensor rstd = ctx.saved(has_weight ? 2 : 1);
  SymTensor rows = contiguous_operand(h, x);
  SymTensor gx = ctx.needs(0) ? empty_result(h, x->shape, x->dtype) : SymTensor();
  SymTensor gw = has_weight && ctx.needs(1) ? empty_result(h, w->shape, w->dtype) : SymTensor();
  SymTensor g = contiguous_operand(h, ctx.grad());
  if (gx) {
    h.launch(OpKind::kRmsNormBackward, {g, rows, rstd, w}, {gx});
    ctx.set(0, std::move(gx));
  }
  if (gw) {
    const std::array<SymTensor, 3> in{g, rows, rstd};
    gamma_gradients(ctx, OpKind::kRmsNormBackwardGamma, in, &gw, nullptr);
    ctx.set(1, std::move(gw));
  }
}

/// Edges: input, weight, bias. Saved: bias?, input, weight?, mean, rstd.
void layer_norm_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  int i = 0;
  const bool has_weight = ctx.node.ints[0] != 0, has_bias = ctx.node.ints[1] != 0;
  SymTensor bias = has_bias ? ctx.saved(i++) : SymTensor();
  SymTensor x = ctx.saved(i++);
  SymTensor w = has_weight ? ctx.saved(i++) : SymTensor();
  SymTensor mean = ctx.saved(i++);
  SymTensor rstd = ctx.saved(i++);
  SymTensor rows = contiguous_operand(h, x);
  SymTensor gx, gw, gb;
  if (ctx.needs(0)) gx = empty_result(h, x->shape, x->dtype);
  if (has_weight && ctx.needs(1)) gw = empty_result(h, w->shape, w->dtype);
  if (has_bias && ctx.needs(2)) gb = empty_result(h, {ctx.node.shape[-1]}, w ? w->dtype : x->dtype);
  SymTensor g = contiguous_operand(h, ctx.grad());
  if (gx) {
    h.launch(OpKind::kLayerNormBackward, {g, rows, mean, rstd, w}, {gx});
    ctx.set(0, std::move(gx));
  }
  if (!gw && !gb) return;
  const std::array<SymTensor, 4> in{g, rows, mean, rstd};
  gamma_gradients(ctx, OpKind::kLayerNormBackwardGamma, in, &gw, &gb);
  if (gw) ctx.set(1, std::move(gw));
  if (gb) ctx.set(2, std::move(gb));
}

}  // namespace

SymTensor rms_norm(Host& h, const SymTensor& x, const SymTensor& weight, double eps) {
  check_norm(h, x, weight);
  const auto run = [&](Record* r) {
    if (r && *r) {
      r->save(x);
      if (weight) r->save(weight);
    }
    SymTensor rows = contiguous_operand(h, x);
    SymTensor y = empty_result(h, x->shape, x->dtype);
    SymTensor rstd = empty_result(h, rows_of(x->shape), DType::kFloat32);
    launch_norm(h, OpKind::kRmsNorm, std::array{rows, weight}, std::array{y, rstd}, eps);
    rows.reset();
    if (r) r->attach(y);
    if (r && *r) r->save_output(rstd);
    return y;
  };
  if (weight) {
    Record r(h, rms_norm_backward, {&x, &weight});
    return run(&r);
  }
  Record r(h, rms_norm_backward, {&x});
  return run(&r);
}

SymTensor layer_norm(Host& h, const SymTensor& x, const SymTensor& weight, const SymTensor& bias,
                     double eps) {
  check_norm(h, x, weight);
  Record r(h, layer_norm_backward, {&x, &weight, &bias});
  if (r) {
    r->ints = {weight ? 1 : 0, bias ? 1 : 0};
    r->shape = x->shape;
    if (bias) r.save(bias);
    r.save(x);
    if (weight) r.save(weight);
  }
  SymTensor rows = contiguous_operand(h, x);
  SymTensor y = empty_result(h, x->shape, x->dtype);
  SymTensor mean = empty_result(h, rows_of(x->shape), DType::kFloat32);
  SymTensor rstd = empty_result(h, rows_of(x->shape), DType::kFloat32);
  launch_norm(h, OpKind::kLayerNorm, std::array{rows, weight, bias}, std::array{y, mean, rstd}, eps);
  rows.reset();
  r.attach(y);
  if (r) {
    r.save_output(mean);
    r.save_output(rstd);
  }
  mean.reset();
  rstd.reset();
  return y;
}

}  // namespace foreshard
