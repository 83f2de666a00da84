#include "schedules/planner/recipes/positions.h"

namespace foreshard {
namespace {

/// A kernel of one argument without autograd.
SymTensor apply(Host& h, OpKind op, const SymTensor& x, std::initializer_list<double> attributes = {}) {
  SymTensor y = empty_result(h, x->shape, x->dtype);
  h.launch(op, {x}, {y}, attributes);
  return y;
}

}  // namespace

void rotary_table(Host& h, const Module& module, const SymTensor& x, std::int64_t width, SymTensor& cos, SymTensor& sin) {
  const NoGradGuard no_grad(h);
  const std::int64_t s = x->shape[1];
  SymTensor positions = empty_result(h, {s}, DType::kInt64);
  h.launch(OpKind::kArange, {}, {positions});
  SymTensor wide = cast(h, positions, DType::kFloat32);
  SymTensor frequencies = raw_view(h, h.buffer(module, 0), {1, width / 2, 1});
  SymTensor angles = transpose(h, matmul(h, frequencies, raw_view(h, wide, {1, 1, s})), 1, 2);
  const std::array<SymTensor, 2> halves{angles, angles};
  SymTensor both = cat(h, halves, -1);
  // Times the attention scaling, then to the model's dtype.
  cos = cast(h, apply(h, OpKind::kMulScalar, apply(h, OpKind::kCos, both), {1}), x->dtype);
  sin = cast(h, apply(h, OpKind::kMulScalar, apply(h, OpKind::kSin, both), {1}), x->dtype);
}

SymTensor causal_mask(Host& h, const SymTensor& x, std::int64_t window, bool always, DType dtype) {
  const std::int64_t b = x->shape[0], s = x->shape[1];
  const bool eager = dtype != DType::kBool;
  if (!eager && !always && !(window > 0 && window <= s)) return {};
  const NoGradGuard no_grad(h);
  SymTensor mask = empty_result(h, {b, 1, s, s}, DType::kBool);
  h.launch(OpKind::kCompare, {}, {mask});
  if (!eager) return mask;
  SymTensor additive = empty_result(h, {b, 1, s, s}, x->dtype);
  h.launch(OpKind::kWhere, {mask}, {additive});
  return additive;
}

}  // namespace foreshard
