// Convolutions of patches and of short sequences, average pooling.

#include <array>

#include "schedules/planner/recipes/special.h"

namespace foreshard {
namespace {

void launch(Host& h, OpKind op, std::span<const SymTensor> in, std::span<const SymTensor> out,
            std::span<const double> attributes, const std::array<std::int64_t, 6>& dims) {
  LaunchRequest q;
  q.op = op;
  q.inputs = in;
  q.outputs = out;
  q.attributes = attributes;
  q.dims = dims;
  q.dtype = in[0]->dtype;  // The gradient of an input that takes none is the first output.
  q.dtype_given = true;
  if (op == OpKind::kConv1dDepthwiseBackward) q.kernels = dims[3];  // One for each gradient.
  h.launch(q);
}

/// Rows, filters, products of one output; `times` products: forward one, backward one for each
/// gradient wanted.
std::array<std::int64_t, 6> convolution_dims(const SymTensor& y, const SymTensor& w,
                                             std::int64_t times) {
  return {y->numel / w->shape[0], w->shape[0], w->numel / w->shape[0], times, 0, 0};
}

/// A convolution over time whose filter is as long as its input: time becomes part of the channels.
SymTensor without_time(Host& h, const SymTensor& t) {
  if (t->shape.rank != 5) return t;
  return raw_view(h, t, {t->shape[0], t->shape[1] * t->shape[2], t->shape[3], t->shape[4]});
}

/// Saved: input, weight. Edges: input, weight, bias.
void conv2d_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor x = ctx.saved(0), w = ctx.saved(1);
  SymTensor gx = ctx.needs(0) ? empty_result(h, x->shape, x->dtype) : SymTensor();
  SymTensor gw = ctx.needs(1) ? empty_result(h, w->shape, w->dtype) : SymTensor();
  SymTensor gb = ctx.needs(2) ? empty_result(h, {w->shape[0]}, w->dtype) : SymTensor();
  const std::array<SymTensor, 3> in{ctx.grad(), without_time(h, x), without_time(h, w)};
  const std::array<SymTensor, 3> out{gx ? without_time(h, gx) : gx, gw ? without_time(h, gw) : gw,
                                     gb};
  const std::array<double, 2> attributes{static_cast<double>(ctx.node.ints[0]),
                                         static_cast<double>(ctx.node.ints[1])};
  launch(h, OpKind::kConv2dBackward, in, out, attributes,
         convolution_dims(ctx.grad(), w, (gx ? 1 : 0) + (gw ? 1 : 0)));
  if (gx) ctx.set(0, std::move(gx));
  if (gw) ctx.set(1, std::move(gw));
  if (gb) ctx.set(2, std::move(gb));
}

SymTensor conv2d(Host& h, const Statement& s, const SymTensor& input) {
  const SymTensor bias =
      autocast_low(h, s.parameters.size() > 1 ? h.parameter(s.parameters[1]) : SymTensor());
  const SymTensor w = autocast_low(h, h.parameter(s.parameters[0]));
  const SymTensor x = autocast_low(h, input);
  const std::int64_t stride = s.ints.empty() ? 1 : s.ints[0],
                     padding = s.ints.size() > 1 ? s.ints[1] : 0;
  Record r(h, conv2d_backward, {&x, &w, &bias});
  if (r) {
    r->ints = {stride, padding};
    r.save(x);
    r.save(w);
  }
  const std::array<SymTensor, 3> in{without_time(h, x), without_time(h, w), bias};
  const auto out = [&](int d) {
    return (in[0]->shape[d] + 2 * padding - in[1]->shape[d]) / stride + 1;
  };
  SymTensor y = empty_result(h, {x->shape[0], w->shape[0], out(2), out(3)}, x->dtype);
  const std::array<double, 2> attributes{static_cast<double>(stride), static_cast<double>(padding)};
  launch(h, OpKind::kConv2d, in, {&y, 1}, attributes, convolution_dims(y, w, 1));
  r.attach(y);
  return y;
}

/// Saved: input, weight. Edges: input, weight.
void depthwise_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor x = ctx.saved(0), w = ctx.saved(1);
  SymTensor g = contiguous_operand(h, ctx.grad()), rows = contiguous_operand(h, x);
  SymTensor gw = ctx.needs(1) ? empty_result(h, w->shape, w->dtype) : SymTensor();
  SymTensor gx = ctx.needs(0) ? empty_result(h, x->shape, x->dtype) : SymTensor();
  const std::array<SymTensor, 3> in{g, rows, w};
  const std::array<SymTensor, 2> out{gx, gw};
  const auto padding = static_cast<double>(ctx.node.ints[0]);
  launch(h, OpKind::kConv1dDepthwiseBackward, in, out, {&padding, 1},
         convolution_dims(ctx.grad(), w, (gx ? 1 : 0) + (gw ? 1 : 0)));
  if (gx) ctx.set(0, std::move(gx));
  if (gw) ctx.set(1, std::move(gw));
}

/// `in`: x and, where it is no parameter of the statement, the weight.
SymTensor depthwise(Host& h, const Statement& s, std::span<const SymTensor> in) {
  const SymTensor w = autocast_low(h, in.size() > 1 ? in[1] : h.parameter(s.parameters[0]));
  const SymTensor x = autocast_low(h, in[0]);
  const std::int64_t padding = s.ints[0];
  Record r(h, depthwise_backward, {&x, &w});
  if (r) {
    r->ints[0] = padding;
    r.save(x);
    r.save(w);
  }
  SymTensor rows = contiguous_operand(h, x);
  SymTensor y = empty_result(
      h, {x->shape[0], x->shape[1], x->shape[2] + 2 * padding - w->shape[2] + 1}, x->dtype);
  const std::array<SymTensor, 2> operands{rows, w};
  const auto attribute = static_cast<double>(padding);
  launch(h, OpKind::kConv1dDepthwise, operands, {&y, 1}, {&attribute, 1}, convolution_dims(y, w, 1));
  r.attach(y);
  return y;
}

/// Saved: self, for its shape only.
void avg_pool_backward(BackwardContext& ctx) {
  SymTensor x = ctx.saved(0);
  SymTensor gx = empty_result(ctx.host, x->shape, x->dtype);
  ctx.host.launch(OpKind::kAvgPool2dBackward, {contiguous(ctx.host, ctx.grad())}, {gx},
                  {static_cast<double>(ctx.node.ints[0])});
  ctx.set(0, std::move(gx));
}

SymTensor avg_pool(Host& h, const Statement& s, const SymTensor& x) {
  const std::int64_t side = s.ints[0];
  Record r(h, avg_pool_backward, {&x});
  if (r) {
    r->ints[0] = side;
    r.save(x);
  }
  SymTensor y =
      empty_result(h, {x->shape[0], x->shape[1], x->shape[2] / side, x->shape[3] / side}, x->dtype);
  h.launch(OpKind::kAvgPool2d, {x}, {y}, {static_cast<double>(side)});
  r.attach(y);
  return y;
}

}  // namespace

bool run_convolution(Host& h, const Statement& s, std::span<SymTensor> in,
                     std::span<SymTensor> out) {
  switch (s.function) {
    case Function::kConv2d:
      out[0] = conv2d(h, s, in[0]);
      return true;
    case Function::kConv1dDepthwise:
      out[0] = depthwise(h, s, in);
      return true;
    case Function::kAvgPool2d:
      out[0] = avg_pool(h, s, in[0]);
      return true;
    default:
      return false;
  }
}

}  // namespace foreshard
