// Functions of one operand, clamp and dropout.

#include <array>
#include <utility>

#include "schedules/planner/recipes/launches.h"
#include "schedules/planner/recipes/recipe.h"

namespace foreshard {
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

namespace {

/// Saved: the number.
void mul_number_backward(BackwardContext& ctx) {
  SymTensor number = ctx.saved(0);
  ctx.set(0, launch_unary(ctx.host, OpKind::kMulScalar, ctx.grad(), ctx.node.floats[0]));
}

}  // namespace

SymTensor mul_number(Host& h, const SymTensor& x, const SymTensor& number, double value) {
  Record r(h, mul_number_backward, {&x});
  if (r) {
    r->floats[0] = value;
    r.save(number);
  }
  SymTensor y = launch_unary(h, OpKind::kMulScalar, x, value);
  r.attach(y);
  return y;
}

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

}  // namespace foreshard
