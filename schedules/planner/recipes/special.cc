#include "schedules/planner/recipes/special.h"

#include "schedules/planner/recipes/convolution.h"
#include "schedules/planner/recipes/positions.h"

namespace foreshard {
namespace {

void sum_all_backward(BackwardContext& ctx) {
  std::array<std::int64_t, kMaxRank> stride{};
  ctx.set(0, raw_view(ctx.host, ctx.grad(), ctx.node.shape, stride, ctx.grad()->offset));
}

/// [T, k] x [k, n] with autograd.
SymTensor mm(Host& h, const SymTensor& a, const SymTensor& b) { return matmul(h, a, b); }

}  // namespace

SymTensor sum_all(Host& h, const SymTensor& x) {
  Record r(h, sum_all_backward, {&x});
  if (r) r->shape = x->shape;
  SymTensor y = empty_result(h, Shape(), x->dtype);
  h.launch(OpKind::kSum, {x}, {y});
  r.attach(y);
  return y;
}

SymTensor dense_experts(Host& h, const SymTensor& x, const SymTensor& w1, const SymTensor& w2, const SymTensor& w3) {
  const std::int64_t e = w1->shape[0], hidden = w1->shape[1], d = w1->shape[2];
  const auto up = [&](const SymTensor& w) { return linear(h, x, view(h, w, {e * hidden, d}), {}); };
  SymTensor a = unary(h, Function::kSilu, up(w1));
  SymTensor b = up(w3);
  SymTensor gated = mul(h, a, b);
  const std::int64_t rows = gated->numel / (e * hidden);
  SymTensor flat = view(h, gated, {rows, e * hidden});
  SymTensor down = reshape(h, transpose(h, w2, 1, 2), {e * hidden, d});
  SymTensor y = mm(h, flat, down);
  Shape s = x->shape;
  s[-1] = d;
  return view(h, y, s);
}

bool run_special(Host& h, const Module& module, const Statement& s, std::span<SymTensor> in, std::span<SymTensor> out) {
  const auto i = [&](std::size_t k) { return k < s.ints.size() ? s.ints[k] : 0; };
  switch (s.function) {
    case Function::kRotaryTable: rotary_table(h, module, in[0], i(0), out[0], out[1]); return true;
    case Function::kCausalMask: out[0] = causal_mask(h, in[0], i(0), i(1) != 0, s.dtype); return true;
    case Function::kConv2d: {
      const auto parameter = [&](std::size_t k) { return k < s.parameters.size() ? h.parameter(s.parameters[k]) : SymTensor(); };
      out[0] = conv2d(h, in[0], parameter(0), parameter(1), i(0), i(1));
      return true;
    }
    default: return false;
  }
}

}  // namespace foreshard
