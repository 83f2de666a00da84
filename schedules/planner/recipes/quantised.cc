// Linear layers whose weight is kept in four bits (bitsandbytes/autograd/_functions.py: MatMul4Bit;
// functional.py: dequantize_4bit).

#include "schedules/planner/recipes/special.h"

namespace foreshard {
namespace {

/// The weight [out, in] in `dtype`. Scales that are quantised themselves are made fp32 first, and
/// shifted.
SymTensor dequantise(Host& h, const SymTensor& packed, const SymTensor& scales, const Shape& shape,
                     DType dtype) {
  SymTensor wide = scales;
  if (scales->dtype != DType::kFloat32) {
    wide = empty_result(h, scales->shape, DType::kFloat32);
    h.launch(OpKind::kDequantize4Bit, {scales}, {wide});
    h.launch(OpKind::kAddScalar, {wide}, {wide}, {0.0});
  }
  SymTensor w = empty_result(h, shape, dtype);
  h.launch(OpKind::kDequantize4Bit, {packed, wide}, {w});
  return w;
}

/// Saved: the packed weight and its scales. Edges: x.
void linear_4bit_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor packed = ctx.saved(0), scales = ctx.saved(1);
  const NoGradGuard no_grad(h);
  SymTensor w =
      dequantise(h, packed, scales, {ctx.node.ints[0], ctx.node.ints[1]}, ctx.grad()->dtype);
  ctx.set(0, matmul(h, ctx.grad(), w));
}

SymTensor linear_4bit(Host& h, const Module& module, const Statement& s, const SymTensor& x) {
  const SymTensor& packed = h.parameter(s.parameters[0]);
  const SymTensor bias = s.parameters.size() > 1 ? h.parameter(s.parameters[1]) : SymTensor();
  const SymTensor& scales = h.buffer(module, 0);
  Record r(h, linear_4bit_backward, {&x});
  if (r) {
    r->ints = {s.ints[0], s.ints[1]};
    r.save(packed);
    r.save(scales);
  }
  SymTensor y;
  {
    const NoGradGuard no_grad(h);
    SymTensor w = dequantise(h, packed, scales, {s.ints[0], s.ints[1]}, x->dtype);
    y = linear(h, x, w, bias);
  }
  h.set_category(y, result_category(h));  // The function's result, made without gradients.
  r.attach(y);
  return y;
}

}  // namespace

bool run_quantised(Host& h, const Module& module, const Statement& s, std::span<SymTensor> in,
                   std::span<SymTensor> out) {
  if (s.function != Function::kLinear4Bit) return false;
  out[0] = linear_4bit(h, module, s, in[0]);
  return true;
}

}  // namespace foreshard
