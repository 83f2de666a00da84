#include "schedules/planner/recipes/special.h"

#include <algorithm>
#include <array>
#include <utility>

#include "schedules/planner/recipes/experts.h"
#include "schedules/planner/recipes/masks.h"

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

SymTensor positions(Host& h, std::int64_t n) {
  SymTensor t = empty_result(h, {n}, DType::kInt64);
  h.launch(OpKind::kArange, {}, {t});
  return t;
}

SymTensor dense_experts(Host& h, const SymTensor& x, const SymTensor& w1, const SymTensor& w2,
                        const SymTensor& w3) {
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

// ----------------------------------------------------------------------------------------------
// tables and masks

namespace {

/// Inputs: x, position ids (made here if absent).
void rotary(Host& h, const Module& module, const Statement& s, std::span<SymTensor> in,
            std::span<SymTensor> out) {
  const SymTensor positions = in.size() > 1 ? in[1] : position_ids(h, in[0]->shape[1]);
  if (s.ints.size() > 1 && s.ints[1] != 0) {
    update_long_frequencies(h, h.impl().long_frequencies[h.scope().value], h.buffer(module, 0),
                            positions);
  }
  rotary_table(h, h.buffer(module, 0), s.ints[0], in[0], positions, out);
}

/// Inputs: x, position ids?; ints: window, always [0], sliding even with window 0 [0]. See masks.h.
SymTensor causal_mask(Host& h, const Statement& s, std::span<SymTensor> in) {
  const auto number = [&](std::size_t i) { return i < s.ints.size() ? s.ints[i] : 0; };
  const MaskRequest request{number(0), number(0) > 0 || number(2) != 0, number(1) != 0,
                            s.dtype != DType::kBool};
  return decoder_mask(h, request, in[0], in.size() > 1 ? in[1] : SymTensor());
}

// ----------------------------------------------------------------------------------------------
// picking rows

/// Saved: index. The gradient is scattered into zeros.
void gather_backward(BackwardContext& ctx) {
  SymTensor index = ctx.saved(0);
  SymTensor g = empty_result(ctx.host, ctx.node.shape, ctx.grad()->dtype);
  ctx.host.launch(OpKind::kScatter, {index, ctx.grad()}, {g},
                  {static_cast<double>(ctx.node.ints[0]), 1.0});
  ctx.set(0, std::move(g));
}

void top_k(Host& h, const Statement& s, std::span<SymTensor> in, std::span<SymTensor> out) {
  Record r(h, gather_backward, {&in[0]});
  Shape shape = in[0]->shape;
  shape[-1] = s.ints[0];
  out[0] = empty_result(h, shape, in[0]->dtype);
  SymTensor index = empty_result(h, shape, DType::kInt64);
  h.launch(OpKind::kTopK, {in[0]}, {out[0], index});
  if (r) {
    r->shape = in[0]->shape;
    r->ints[0] = in[0]->shape.rank - 1;
    r.attach(out[0]);
    r.save_output(index);
  }
  if (out.size() > 1) out[1] = std::move(index);
}

SymTensor gather(Host& h, const SymTensor& x, const SymTensor& index, int dim) {
  Record r(h, gather_backward, {&x});
  if (r) {
    r->shape = x->shape;
    r->ints[0] = static_cast<std::int64_t>(x->shape.index(dim));
    r.save(index);
  }
  SymTensor y = empty_result(h, index->shape, x->dtype);
  h.launch(OpKind::kGather, {x, index}, {y}, {static_cast<double>(dim)});
  r.attach(y);
  return y;
}

}  // namespace

bool run_special(Host& h, const Module& module, const Statement& s, std::span<SymTensor> in,
                 std::span<SymTensor> out) {
  switch (s.function) {
    case Function::kRotaryTable:
      rotary(h, module, s, in, out);
      return true;
    case Function::kCausalMask:
      out[0] = causal_mask(h, s, in);
      return true;
    case Function::kTopK:
      top_k(h, s, in, out);
      return true;
    case Function::kGather:
      out[0] = gather(h, in[0], in[1],
                      static_cast<int>(std::clamp<std::int64_t>(s.ints.empty() ? 0 : s.ints[0],
                                                                -kMaxRank - 1, kMaxRank + 1)));
      return true;
    case Function::kIndex:
      out[0] = index_rows(h, in[0], in[1]);
      return true;
    case Function::kRoutedExperts:
      out[0] = routed_experts(h, s, in);
      return true;
    case Function::kLoopedExperts:
      out[0] = looped_experts(h, s, in);
      return true;
    case Function::kDivInPlace:
      out[0] = div_in_place(h, in[0], in[1]);
      return true;
    default:
      return run_convolution(h, s, in, out) || run_masked(h, s, in, out) ||
             run_vision(h, module, s, in, out) || run_quantised(h, module, s, in, out) ||
             run_linear_attention(h, s, in, out);
  }
}

}  // namespace foreshard
