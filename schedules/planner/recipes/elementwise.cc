// Element-wise functions with broadcasting and type promotion.

#include <algorithm>
#include <array>

#include "schedules/planner/host/grad_dtype.h"
#include "schedules/planner/recipes/special.h"

namespace foreshard {
namespace {

Shape broadcast(const Shape& a, const Shape& b) {
  Shape y = a.rank >= b.rank ? a : b;
  for (int d = 1; d <= y.rank; ++d) {
    const std::int64_t x = d <= a.rank ? a[-d] : 1, z = d <= b.rank ? b[-d] : 1;
    if (x != z && x != 1 && z != 1)
      throw InternalError("element-wise function of shapes that do not broadcast");
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

/// TensorIterator keeps the order of strides of its first full operand.
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
      result_like(h, broadcast(a->shape, b->shape), promote(a, b), a->numel >= b->numel ? a : b);
  h.launch(op, {a, b}, {y});
  return y;
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

/// One or two operands of one shape and perhaps a scalar.
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

SymTensor launch_unary(Host& h, OpKind op, const SymTensor& x, double value = 0) {
  return launch_map(h, op, {&x, 1}, value);
}

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

}  // namespace

namespace {

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

// ----------------------------------------------------------------------------------------------
// one operand

namespace {

/// How a function of one operand goes back.
struct UnaryRow {
  Function function;
  OpKind forward, backward;  ///< `backward` == forward: scalar rules below.
  enum class Saves : std::uint8_t { kNothing, kInput, kResult } saves;
};

constexpr UnaryRow kUnaryRows[] = {
    {Function::kNeg, OpKind::kNeg, OpKind::kNeg, UnaryRow::Saves::kNothing},
    {Function::kAddScalar, OpKind::kAddScalar, OpKind::kAddScalar, UnaryRow::Saves::kNothing},
    {Function::kMulScalar, OpKind::kMulScalar, OpKind::kMulScalar, UnaryRow::Saves::kNothing},
    {Function::kPowScalar, OpKind::kPow, OpKind::kPow, UnaryRow::Saves::kInput},
    {Function::kRsqrt, OpKind::kRsqrt, OpKind::kRsqrt, UnaryRow::Saves::kResult},
    {Function::kSilu, OpKind::kSilu, OpKind::kSiluBackward, UnaryRow::Saves::kInput},
    {Function::kGelu, OpKind::kGelu, OpKind::kGeluBackward, UnaryRow::Saves::kInput},
    {Function::kRelu, OpKind::kRelu, OpKind::kReluBackward, UnaryRow::Saves::kResult},
    {Function::kSigmoid, OpKind::kSigmoid, OpKind::kSigmoidBackward, UnaryRow::Saves::kResult},
    {Function::kTanh, OpKind::kTanh, OpKind::kTanhBackward, UnaryRow::Saves::kResult},
    {Function::kExp, OpKind::kExp, OpKind::kMul, UnaryRow::Saves::kResult},
    {Function::kSoftplus, OpKind::kSoftplus, OpKind::kSoftplusBackward, UnaryRow::Saves::kInput},
};

const UnaryRow& unary_row(Function f) {
  for (const UnaryRow& r : kUnaryRows)
    if (r.function == f) return r;
  throw InternalError("no rule for this function of one operand");
}

void unary_backward(BackwardContext& ctx) {
  const UnaryRow& row = kUnaryRows[static_cast<std::size_t>(ctx.node.ints[0])];
  Host& h = ctx.host;
  SymTensor kept = row.saves == UnaryRow::Saves::kNothing ? SymTensor() : ctx.saved(0);
  const SymTensor& g = ctx.grad();
  const double value = ctx.node.floats[0];
  switch (row.function) {
    case Function::kNeg:
      ctx.set(0, launch_unary(h, OpKind::kNeg, g));
      return;
    case Function::kAddScalar:
      ctx.set(0, g);
      return;
    case Function::kMulScalar:
      ctx.set(0, launch_unary(h, OpKind::kMulScalar, g, value));
      return;
    case Function::kPowScalar: {  // grad * (exponent * x^(exponent - 1))
      SymTensor p = launch_unary(h, OpKind::kPow, kept, value - 1);
      SymTensor scaled = launch_unary(h, OpKind::kMulScalar, p, value);
      ctx.set(0, launch_binary(h, OpKind::kMul, g, scaled));
      return;
    }
    case Function::kRsqrt: {  // -0.5 * grad * result^3
      SymTensor half = launch_unary(h, OpKind::kMulScalar, g, -0.5);
      SymTensor cube = launch_unary(h, OpKind::kPow, kept, 3);
      ctx.set(0, launch_binary(h, OpKind::kMul, half, cube));
      return;
    }
    default:
      break;
  }
  const std::array<SymTensor, 2> operands{g, kept};
  ctx.set(0, launch_map(h, row.backward, operands, value));
}

}  // namespace

SymTensor unary(Host& h, Function f, const SymTensor& x, double value) {
  const UnaryRow& row = unary_row(f);
  Record r(h, unary_backward, {&x});
  if (r) {
    r->ints[0] = &row - kUnaryRows;
    r->floats[0] = value;
    if (row.saves == UnaryRow::Saves::kInput) r.save(x);
  }
  SymTensor y = launch_map(h, row.forward, {&x, 1}, value);
  r.attach(y);
  if (r && row.saves == UnaryRow::Saves::kResult) r.save_output(y);
  return y;
}

// ----------------------------------------------------------------------------------------------
// dropout, reductions

namespace {

/// where((self >= low) & (self <= high), grad, 0), the number made a tensor first. Saved: self.
void clamp_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  const SymTensor& x = ctx.saved(0);
  SymTensor zero = empty_result(h, Shape(), ctx.grad()->dtype);
  h.launch(OpKind::kFill, {}, {zero}, {0.0});
  SymTensor above = empty_result(h, x->shape, DType::kBool),
            below = empty_result(h, x->shape, DType::kBool);
  h.launch(OpKind::kCompare, {x}, {above}, {3.0, ctx.node.floats[0]});
  h.launch(OpKind::kCompare, {x}, {below}, {1.0, ctx.node.floats[1]});
  SymTensor inside = empty_result(h, x->shape, DType::kBool);
  h.launch(OpKind::kMul, {above, below}, {inside});
  SymTensor y = result_like(h, ctx.grad()->shape, ctx.grad()->dtype, ctx.grad());
  h.launch(OpKind::kWhere, {inside, ctx.grad(), zero}, {y});
  ctx.set(0, std::move(y));
}

void dropout_backward(BackwardContext& ctx) {
  SymTensor mask = ctx.saved(0);
  SymTensor y = empty_result(ctx.host, ctx.grad()->shape, ctx.grad()->dtype);
  ctx.host.launch(OpKind::kDropoutBackward, {ctx.grad(), mask}, {y}, {ctx.node.floats[0]});
  ctx.set(0, std::move(y));
}

void mean_backward(BackwardContext& ctx) {
  Shape s = ctx.grad()->shape;
  s[-1] = ctx.node.shape[-1];
  std::array<std::int64_t, kMaxRank> stride = ctx.grad()->stride;
  stride[static_cast<std::size_t>(s.rank - 1)] = 0;
  SymTensor wide = raw_view(ctx.host, ctx.grad(), s, stride, ctx.grad()->offset);
  SymTensor y = result_like(ctx.host, s, ctx.grad()->dtype, wide);
  ctx.host.launch(OpKind::kMulScalar, {wide}, {y}, {1.0 / static_cast<double>(s[-1])});
  ctx.set(0, std::move(y));
}

void sum_backward(BackwardContext& ctx) {
  const int dim = static_cast<int>(ctx.node.ints[0]);
  const bool keep = ctx.node.ints[1] != 0;
  const SymTensor& g = ctx.grad();
  const Shape& s = ctx.node.shape;
  std::array<std::int64_t, kMaxRank> stride{};
  for (int d = 0, o = 0; d < s.rank; ++d) {
    if (d == dim) {
      if (keep) ++o;
    } else {
      stride[static_cast<std::size_t>(d)] = g->stride[static_cast<std::size_t>(o++)];
    }
  }
  ctx.set(0, raw_view(ctx.host, g, s, stride, g->offset));
}

void softmax_backward(BackwardContext& ctx) {
  SymTensor y = ctx.saved(0);
  SymTensor gx = empty_result(ctx.host, ctx.grad()->shape, static_cast<DType>(ctx.node.ints[0]));
  // The kernel takes grad * y (softmax_backward_cuda_out); ours computes both at once.
  SymTensor product = empty_temporary(ctx.host, ctx.grad()->bytes());
  ctx.host.launch(OpKind::kSoftmaxBackward, {ctx.grad(), y}, {gx});
  ctx.set(0, std::move(gx));
}

}  // namespace

/// native_dropout: the mask (one byte an element) is made before the result and saved.
SymTensor dropout(Host& h, const SymTensor& x, double p) {
  const bool trains = h.grad_enabled() || h.impl().reentrant_forwards > 0;
  if (p <= 0 || !trains) return x;
  Record r(h, dropout_backward, {&x});
  SymTensor mask = empty_result(h, x->shape, DType::kBool);
  SymTensor y = empty_result(h, x->shape, x->dtype);
  h.launch(OpKind::kDropout, {x}, {y, mask}, {p, static_cast<double>(h.impl().draws++)});
  if (r) {
    r->floats[0] = p;
    r.attach(y);
    r.save_output(mask);
  }
  return y;
}

SymTensor clamp(Host& h, const SymTensor& x, double low, double high) {
  Record r(h, clamp_backward, {&x});
  if (r) {
    r->floats = {low, high};
    r.save(x);
  }
  SymTensor y = result_like(h, x->shape, x->dtype, x);
  h.launch(OpKind::kClamp, {x}, {y}, {low, high});
  r.attach(y);
  return y;
}

SymTensor mean_last(Host& h, const SymTensor& x) {
  Record r(h, mean_backward, {&x});
  if (r) r->shape = x->shape;
  Shape s = x->shape;
  s[-1] = 1;
  SymTensor y = empty_result(h, s, x->dtype);
  h.launch(OpKind::kMean, {x}, {y}, {-1.0});
  r.attach(y);
  return y;
}

SymTensor sum_dim(Host& h, const SymTensor& x, int dim, bool keep) {
  if (dim < 0) dim += x->shape.rank;
  Record r(h, sum_backward, {&x});
  if (r) {
    r->shape = x->shape;
    r->ints[0] = dim;
    r->ints[1] = keep ? 1 : 0;
  }
  Shape s;
  for (int d = 0; d < x->shape.rank; ++d) {
    if (d != dim)
      s.dim[s.rank++] = x->shape[d];
    else if (keep)
      s.dim[s.rank++] = 1;
  }
  SymTensor y = empty_result(h, s, autocast_sum_dtype(h, x->dtype));
  h.launch(OpKind::kSum, {x}, {y}, {static_cast<double>(dim)});
  r.attach(y);
  return y;
}

namespace {

/// norm_backward of aten/src/ATen/native (FunctionsManual.cpp). Saved: self, result.
/// p 1: grad * sign(self); p 2: grad * (self / norm), zero where the norm is.
void vector_norm_backward(BackwardContext& ctx) {
  Host& h = ctx.host;
  SymTensor x = ctx.saved(0), norm = ctx.saved(1);
  if (ctx.node.floats[0] == 1) {
    ctx.set(0, launch_binary(h, OpKind::kMul, launch_unary(h, OpKind::kSign, x), ctx.grad()));
    return;
  }
  SymTensor unit = launch_binary(h, OpKind::kDiv, x, norm);
  {
    SymTensor zero = empty_result(h, norm->shape, DType::kBool);
    h.launch(OpKind::kCompare, {norm}, {zero}, {4.0, 0.0});
    h.launch(OpKind::kWhere, {zero, SymTensor(), unit}, {unit}, {0.0});
  }
  ctx.set(0, launch_binary(h, OpKind::kMul, ctx.grad(), unit));
}

void cumsum_backward(BackwardContext& ctx) {
  // grad.to(self.scalar_type()) first.
  const SymTensor grad = cast(ctx.host, ctx.grad(), static_cast<DType>(ctx.node.ints[1]));
  SymTensor y = empty_result(ctx.host, grad->shape, grad->dtype);
  ctx.host.launch(OpKind::kCumsum, {grad}, {y}, {static_cast<double>(ctx.node.ints[0]), 1.0});
  ctx.set(0, std::move(y));
}

}  // namespace

SymTensor vector_norm(Host& h, const SymTensor& x, double p) {
  Record r(h, vector_norm_backward, {&x});
  if (r) {
    r->floats[0] = p;
    r.save(x);
  }
  Shape s = x->shape;
  s[-1] = 1;
  SymTensor y = empty_result(h, s, autocast_sum_dtype(h, x->dtype));
  h.launch(OpKind::kNorm, {x}, {y}, {p});
  r.attach(y);
  if (r) r.save_output(y);
  return y;
}

SymTensor cumsum(Host& h, const SymTensor& x, int dim) {
  Record r(h, cumsum_backward, {&x});
  if (r) {
    r->ints[0] = dim;
    r->ints[1] = static_cast<std::int64_t>(x->dtype);
  }
  const DType dtype = autocast_sum_dtype(h, x->dtype);
  SymTensor y = empty_result(h, x->shape, dtype);
  SymTensor from = x;
  if (dtype != x->dtype) {  // self.to(result.scalar_type()) inside the function.
    from = empty_result(h, x->shape, dtype);
    h.launch(OpKind::kCopy, {x}, {from});
  }
  h.launch(OpKind::kCumsum, {from}, {y}, {static_cast<double>(dim)});
  r.attach(y);
  return y;
}

SymTensor softmax(Host& h, const SymTensor& x_in, DType dtype) {
  // softmax(x, dtype): converted first; only fp16 to fp32 is done inside the kernel.
  const bool inside = x_in->dtype == DType::kFloat16 && dtype == DType::kFloat32;
  const SymTensor x = inside ? x_in : cast(h, x_in, dtype);
  Record r(h, softmax_backward, {&x});
  if (r) r->ints[0] = static_cast<std::int64_t>(x->dtype);
  SymTensor y = empty_result(h, x->shape, dtype);
  h.launch(OpKind::kSoftmax, {x}, {y});
  r.attach(y);
  if (r) r.save_output(y);
  return y;
}

}  // namespace foreshard
