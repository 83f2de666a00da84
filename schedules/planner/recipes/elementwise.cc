// Functions of two operands with broadcasting and type promotion, and the launches that all
// element-wise functions share.

#include "schedules/planner/recipes/launches.h"

#include <algorithm>
#include <array>

#include "schedules/planner/host/grad_dtype.h"
#include "schedules/planner/recipes/shape_check.h"
#include "schedules/planner/recipes/special.h"

namespace foreshard {
namespace {

Shape broadcast(Host& h, const Shape& a, const Shape& b) {
  Shape y = a.rank >= b.rank ? a : b;
  for (int d = 1; d <= y.rank; ++d) {
    const std::int64_t x = d <= a.rank ? a[-d] : 1, z = d <= b.rank ? b[-d] : 1;
    if (x != z && x != 1 && z != 1) refuse_shapes(h, "element-wise function", a, b);
    y[-d] = x == 1 ? z : x;
  }
  return y;
}

DType promote(const SymTensor& a, const SymTensor& b) {
  if (a->dtype == b->dtype) return a->dtype;
  if (!is_floating(b->dtype) || b->shape.rank == 0) return a->dtype;
  if (!is_floating(a->dtype) || a->shape.rank == 0) return b->dtype;
  return promoted(a->dtype, b->dtype);
}

/// Scalars that a function of one operand takes: one or none.
std::size_t scalars_of(OpKind op) {
  switch (op) {
    case OpKind::kAddScalar:
    case OpKind::kMulScalar:
    case OpKind::kPow:
    case OpKind::kGelu:
    case OpKind::kGeluBackward:
      return 1;
    default:
      return 0;
  }
}

}  // namespace

SymTensor result_like(Host& h, const Shape& shape, DType dtype, const SymTensor& a) {
  SymTensor y = empty_result(h, shape, dtype);
  if (!a || a->numel != y->numel || is_contiguous(*a)) return y;
  std::array<int, kMaxRank> order{};
  for (int d = 0; d < shape.rank; ++d) order[static_cast<std::size_t>(d)] = d;
  std::stable_sort(order.begin(), order.begin() + shape.rank, [&](int p, int q) {
    return a->stride[static_cast<std::size_t>(p)] > a->stride[static_cast<std::size_t>(q)];
  });
  std::int64_t n = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    const int d = order[static_cast<std::size_t>(i)];
    y->stride[static_cast<std::size_t>(d)] = n;
    n *= shape[d];
  }
  return y;
}

SymTensor launch_binary(Host& h, OpKind op, const SymTensor& a, const SymTensor& b) {
  SymTensor y =
      result_like(h, broadcast(h, a->shape, b->shape), promote(a, b), a->numel >= b->numel ? a : b);
  h.launch(op, {a, b}, {y});
  return y;
}

SymTensor launch_map(Host& h, OpKind op, std::span<const SymTensor> in, double scalar) {
  SymTensor y = result_like(h, in[0]->shape, in[0]->dtype, in[0]);
  LaunchRequest q;
  q.op = op;
  q.inputs = in;
  q.outputs = {&y, 1};
  q.attributes = {&scalar, scalars_of(op)};
  h.launch(q);
  return y;
}

SymTensor launch_unary(Host& h, OpKind op, const SymTensor& x, double value) {
  return launch_map(h, op, {&x, 1}, value);
}

namespace {

/// Remembers both input shapes for sum_to.
void remember_shapes(Record& r, const SymTensor& a, const SymTensor& b) {
  r->shape = a->shape;
  r->ints[0] = b->shape.rank;
  for (int d = 0; d < b->shape.rank; ++d) r->ints[static_cast<std::size_t>(d) + 1] = b->shape[d];
}

Shape second_shape(const AutogradNode& n) {
  return Shape(
      std::span<const std::int64_t>(n.ints.data() + 1, static_cast<std::size_t>(n.ints[0])));
}

/// What validate_outputs does to gradients of broadcast inputs.
void reduce_results(BackwardContext& ctx) {
  ctx.drop_saved();
  const Shape shapes[] = {ctx.node.shape, second_shape(ctx.node)};
  for (int i = 0; i < 2; ++i) {  // One input after the other: sum, then dtype.
    if (!ctx.result(i)) continue;
    ctx.set(i, sum_to(ctx.host, ctx.result(i), shapes[i]));
    const AutogradNode* const next = ctx.node.edge(i).node.get();
    if (!next || !next->backward || next->mixed_dtypes || next->dtype == ctx.result(i)->dtype)
      continue;
    ctx.set(i, ctx.host.cast(ctx.result(i), next->dtype, BufferCategory::kBackwardTemporary));
  }
}

void add_backward(BackwardContext& ctx) {
  if (ctx.needs(1)) ctx.set(1, ctx.grad());
  if (ctx.needs(0)) ctx.set(0, ctx.grad());
  reduce_results(ctx);
}

void sub_backward(BackwardContext& ctx) {
  if (ctx.needs(1)) ctx.set(1, launch_unary(ctx.host, OpKind::kNeg, ctx.grad()));
  if (ctx.needs(0)) ctx.set(0, ctx.grad());
  reduce_results(ctx);
}

/// Saved: other (if self needs a gradient), self (if other needs one).
void mul_backward(BackwardContext& ctx) {
  int i = 0;
  SymTensor other = ctx.needs(0) ? ctx.saved(i++) : SymTensor();
  SymTensor self = ctx.needs(1) ? ctx.saved(i++) : SymTensor();
  if (ctx.needs(1)) ctx.set(1, launch_binary(ctx.host, OpKind::kMul, ctx.grad(), self));
  if (ctx.needs(0)) ctx.set(0, launch_binary(ctx.host, OpKind::kMul, ctx.grad(), other));
  self.reset();
  other.reset();
  reduce_results(ctx);
}

/// Saved: other, self (if other needs a gradient). d other = -grad * ((self / other) / other).
void div_backward(BackwardContext& ctx) {
  int i = 0;
  SymTensor other = ctx.saved(i++);
  SymTensor self = ctx.needs(1) ? ctx.saved(i++) : SymTensor();
  Host& h = ctx.host;
  if (ctx.needs(1)) {
    SymTensor minus = launch_unary(h, OpKind::kNeg, ctx.grad());
    SymTensor once = launch_binary(h, OpKind::kDiv, self, other);
    SymTensor twice = launch_binary(h, OpKind::kDiv, once, other);
    ctx.set(1, launch_binary(h, OpKind::kMul, minus, twice));
  }
  if (ctx.needs(0)) ctx.set(0, launch_binary(h, OpKind::kDiv, ctx.grad(), other));
  self.reset();
  other.reset();
  reduce_results(ctx);
}

/// Which operands a function of two saves for backward.
enum class Keeps : std::uint8_t { kNothing, kProduct, kQuotient };

SymTensor binary(Host& h, OpKind op, BackwardFunction backward, Keeps keeps, const SymTensor& a,
                 const SymTensor& b) {
  Record r(h, backward, {&a, &b});
  if (r) {
    remember_shapes(r, a, b);
    if (keeps == Keeps::kQuotient || (keeps == Keeps::kProduct && r.needs(0))) r.save(b);
    if (keeps != Keeps::kNothing && r.needs(1)) r.save(a);
  }
  SymTensor y = launch_binary(h, op, a, b);
  r.attach(y);
  return y;
}

}  // namespace

SymTensor add(Host& h, const SymTensor& a, const SymTensor& b) {
  return binary(h, OpKind::kAdd, add_backward, Keeps::kNothing, a, b);
}
SymTensor sub(Host& h, const SymTensor& a, const SymTensor& b) {
  return binary(h, OpKind::kSub, sub_backward, Keeps::kNothing, a, b);
}
SymTensor mul(Host& h, const SymTensor& a, const SymTensor& b) {
  return binary(h, OpKind::kMul, mul_backward, Keeps::kProduct, a, b);
}
SymTensor div(Host& h, const SymTensor& a, const SymTensor& b) {
  return binary(h, OpKind::kDiv, div_backward, Keeps::kQuotient, a, b);
}

SymTensor div_in_place(Host& h, const SymTensor& x, const SymTensor& y) {
  Record r(h, div_backward, {&x, &y});
  if (r) {
    remember_shapes(r, x, y);
    r.save(y);
    if (r.needs(1)) {
      SymTensor before = empty_result(h, x->shape, x->dtype);
      h.launch(OpKind::kCopy, {x}, {before});
      r.save(before);
    }
  }
  h.launch(OpKind::kDiv, {x, y}, {x});
  r.attach(x);
  return x;
}

SymTensor mul_in_place(Host& h, const SymTensor& x, const SymTensor& y) {
  Record r(h, mul_backward, {&x, &y});
  if (r) {
    remember_shapes(r, x, y);
    r.save(y);
  }
  h.launch(OpKind::kMulInPlace, {x, y}, {x});
  r.attach(x);
  return x;
}

}  // namespace foreshard
