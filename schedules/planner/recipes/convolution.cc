#include "schedules/planner/recipes/convolution.h"

namespace foreshard {
namespace {

/// The equivalent product: rows of patches, reduced over one filter. dims = {m, n, k, batch}.
std::array<std::int64_t, 6> product_dims(const Shape& out, const Shape& weight) {
  return {out[0] * out[2] * out[3], out[1], weight[1] * weight[2] * weight[3], 1, 0, 0};
}

/// Saved: input, weight. ints: stride, padding, has bias.
void conv2d_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor x = ctx.saved(0), w = ctx.saved(1);
  const SymTensor g = ctx.grad();
  SymTensor gx, gw, gb;
  if (ctx.needs(0)) gx = empty_result(h, x->shape, x->dtype);
  if (ctx.needs(1)) gw = empty_result(h, w->shape, w->dtype);
  if (ctx.node.ints[2] != 0 && ctx.needs(2)) gb = empty_result(h, {w->shape[0]}, w->dtype);
  const std::array<SymTensor, 3> in{g, x, w}, out{gx, gw, gb};
  const std::array<double, 2> attributes{static_cast<double>(ctx.node.ints[0]), static_cast<double>(ctx.node.ints[1])};
  LaunchRequest q;
  q.op = OpKind::kConv2dBackward;
  q.inputs = in;
  q.outputs = out;
  q.attributes = attributes;
  q.dims = product_dims(g->shape, w->shape);
  h.launch(q);
  if (gx) ctx.set(0, std::move(gx));
  if (gw) ctx.set(1, std::move(gw));
  if (gb) ctx.set(2, std::move(gb));
}

}  // namespace

SymTensor conv2d(Host& h, const SymTensor& x, const SymTensor& weight, const SymTensor& bias, std::int64_t stride,
                 std::int64_t padding) {
  Record r(h, conv2d_backward, {&x, &weight, &bias});
  if (r) {
    r->ints = {stride, padding, bias ? 1 : 0};
    r.save(x);
    r.save(weight);
  }
  const auto side = [&](int d) { return (x->shape[d] + 2 * padding - weight->shape[d]) / stride + 1; };
  SymTensor y = empty_result(h, {x->shape[0], weight->shape[0], side(2), side(3)}, x->dtype);
  const std::array<SymTensor, 3> in{x, weight, bias};
  const std::array<SymTensor, 1> out{y};
  const std::array<double, 2> attributes{static_cast<double>(stride), static_cast<double>(padding)};
  LaunchRequest q;
  q.op = OpKind::kConv2d;
  q.inputs = in;
  q.outputs = out;
  q.attributes = attributes;
  q.dims = product_dims(y->shape, weight->shape);
  h.launch(q);
  r.attach(y);
  return y;
}

}  // namespace foreshard
