#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/kernels/kernel_functions.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/map.h"
#include "exec/kernels/scalar_math.h"

namespace foreshard::kernels {
namespace {

/// A well-mixed 64-bit hash (splitmix64).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Random numbers of one draw. They differ between steps, draws and elements of the whole batch:
/// the rows of rank r are the r-th part of those that one rank with all rows would have, so that a
/// sharded run draws what the unsharded one draws.
class Draw {
 public:
  Draw(const KernelCall& c, std::int64_t number, std::int64_t elements)
      : state_(mix(mix(static_cast<std::uint64_t>(number)) ^
                   static_cast<std::uint64_t>(c.origin.step + 1))),
        first_(static_cast<std::uint64_t>(c.origin.rank * elements)) {}
  /// Uniform in [0, 1).
  double operator()(std::uint64_t element) const {
    return static_cast<double>(mix(state_ ^ (first_ + element)) >> 11) * 0x1p-53;
  }

 private:
  std::uint64_t state_, first_;
};

}  // namespace

void unary(const KernelCall& c) {
  const TensorView& y = output(c, 0);
  const TensorView& x = input(c, 0);
  const auto v = static_cast<float>(c.attribute(0, 0));
  switch (c.op) {
    case OpKind::kNeg:
      return map(y, x, [](float a) { return -a; });
    case OpKind::kAddScalar:
      return map(y, x, [v](float a) { return a + v; });
    case OpKind::kMulScalar:
      return map(y, x, [v](float a) { return a * v; });
    case OpKind::kSilu:
      return map(y, x, scalar::silu);
    case OpKind::kGelu:
      return v != 0 ? map(y, x, scalar::gelu_tanh) : map(y, x, scalar::gelu_erf);
    case OpKind::kRelu:
      return map(y, x, [](float a) { return a > 0 || std::isnan(a) ? a : 0.0f; });
    case OpKind::kSigmoid:
      return map(y, x, scalar::sigmoid);
    case OpKind::kTanh:
      return map(y, x, [](float a) { return std::tanh(a); });
    case OpKind::kPow:
      if (v == 2.0f) return map(y, x, [](float a) { return a * a; });
      return map(y, x, [v](float a) { return std::pow(a, v); });
    case OpKind::kSqrt:
      return map(y, x, [](float a) { return std::sqrt(a); });
    case OpKind::kRsqrt:
      return map(y, x, [](float a) { return 1.0f / std::sqrt(a); });
    case OpKind::kCos:
      return map(y, x, [](float a) { return std::cos(a); });
    case OpKind::kSin:
      return map(y, x, [](float a) { return std::sin(a); });
    case OpKind::kExp:
      return map(y, x, [](float a) { return std::exp(a); });
    case OpKind::kSign:
      return map(y, x, [](float a) { return a > 0 ? 1.0f : a < 0 ? -1.0f : 0.0f; });
    case OpKind::kSoftplus:
      return map(y, x, scalar::softplus);
    case OpKind::kClamp: {
      const auto high = static_cast<float>(c.attribute(1, 0));
      return map(y, x, [v, high](float a) {
        return std::isnan(a) ? a : std::fmin(std::fmax(a, v), high);
      });
    }
    default:
      kernel_error("not a unary op");
  }
}

void binary(const KernelCall& c) {
  const TensorView& y = output(c, 0);
  const TensorView& a = input(c, 0);
  const TensorView& b = input(c, 1);
  const auto alpha = static_cast<float>(c.attribute(0, 1));
  switch (c.op) {
    case OpKind::kAdd:
      return map(y, a, b, [alpha](float p, float q) { return p + alpha * q; });
    case OpKind::kSub:
      return map(y, a, b, [alpha](float p, float q) { return p - alpha * q; });
    case OpKind::kMul:
      return map(y, a, b, [](float p, float q) { return p * q; });
    case OpKind::kDiv:
      return map(y, a, b, [](float p, float q) { return p / q; });
    default:
      kernel_error("not a binary op");
  }
}

void add_in_place(const KernelCall& c) {
  const auto alpha = static_cast<float>(c.attribute(0, 1));
  map(output(c, 0), input(c, 0), input(c, 1), [alpha](float p, float q) { return p + alpha * q; });
}

void mul_in_place(const KernelCall& c) {
  if (c.has_input(1))
    return map(output(c, 0), input(c, 0), input(c, 1), [](float p, float q) { return p * q; });
  const auto v = static_cast<float>(c.attribute(0, 1));
  map(output(c, 0), input(c, 0), [v](float p) { return p * v; });
}

void activation_backward(const KernelCall& c) {
  const TensorView& gx = output(c, 0);
  const TensorView& grad = input(c, 0);
  const TensorView& x = input(c, 1);
  switch (c.op) {
    case OpKind::kSiluBackward:
      return map(gx, grad, x, scalar::silu_backward);
    case OpKind::kGeluBackward:
      return c.attribute(0, 0) != 0 ? map(gx, grad, x, scalar::gelu_tanh_backward)
                                    : map(gx, grad, x, scalar::gelu_erf_backward);
    case OpKind::kReluBackward:
      return map(gx, grad, x, [](float g, float a) { return a > 0 ? g : 0.0f; });
    case OpKind::kSigmoidBackward:
      return map(gx, grad, x, [](float g, float s) { return g * s * (1 - s); });
    case OpKind::kSoftplusBackward:
      return map(gx, grad, x, scalar::softplus_backward);
    case OpKind::kTanhBackward:
      return map(gx, grad, x, [](float g, float t) { return g * (1 - t * t); });
    default:
      kernel_error("not an activation's gradient");
  }
}

void where(const KernelCall& c) {
  const TensorView& y = output(c, 0);
  const TensorView& condition = input(c, 0);
  const double first = c.attribute(0, 0);
  const auto v = static_cast<float>(first), w = static_cast<float>(c.attribute(1, first));
  const bool has_a = c.has_input(1), has_b = c.has_input(2);
  const TensorView& a = has_a ? c.inputs[1] : condition;
  const TensorView& b = has_b ? c.inputs[2] : condition;
  map(y, condition, a, b,
      [=](float p, float q, float r) { return p != 0 ? (has_a ? q : v) : (has_b ? r : w); });
}

void tril(const KernelCall& c) {
  const TensorView& x = input(c, 0);
  std::vector<float> values = to_floats(x);
  const auto columns = x.shape[static_cast<std::size_t>(x.rank - 1)],
             rows = x.shape[static_cast<std::size_t>(x.rank - 2)];
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    if (at % columns > at / columns % rows) values[i] = 0;
  }
  from_floats(output(c, 0), values.data());
}

void compare(const KernelCall& c) {
  const auto v = static_cast<float>(c.attribute(1, 0));
  const auto relation = integer_attribute(c, 0, 0);
  const bool has_b = c.has_input(1);
  map(output(c, 0), input(c, 0), has_b ? c.inputs[1] : c.inputs[0], [=](float p, float r) {
    const float q = has_b ? r : v;
    switch (relation) {
      case 0:
        return p < q ? 1.0f : 0.0f;
      case 1:
        return p <= q ? 1.0f : 0.0f;
      case 2:
        return p > q ? 1.0f : 0.0f;
      case 3:
        return p >= q ? 1.0f : 0.0f;
      case 4:
        return p == q ? 1.0f : 0.0f;
      default:
        return p != q ? 1.0f : 0.0f;
    }
  });
}

void dropout(const KernelCall& c) {
  const double p = c.attribute(0, 0.5);
  const TensorView& x = input(c, 0);
  const Draw draw(c, integer_attribute(c, 1, 0), x.numel());
  std::vector<float> values = to_floats(x), mask(values.size());
  const auto keep_scale = static_cast<float>(p < 1 ? 1.0 / (1.0 - p) : 0.0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    mask[i] = draw(i) < p ? 0.0f : 1.0f;
    values[i] *= mask[i] * keep_scale;
  }
  from_floats(output(c, 0), values.data());
  if (c.has_output(1)) from_floats(c.outputs[1], mask.data());
}

void uniform(const KernelCall& c) {
  const double low = c.attribute(0, 0), high = c.attribute(1, 1);
  const Draw draw(c, integer_attribute(c, 2, 0), output(c, 0).numel());
  std::vector<float> values(static_cast<std::size_t>(output(c, 0).numel()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(low + (high - low) * draw(i));
  from_floats(output(c, 0), values.data());
}

void dropout_backward(const KernelCall& c) {
  const double p = c.attribute(0, 0.5);
  const auto scale = static_cast<float>(p < 1 ? 1.0 / (1.0 - p) : 0.0);
  map(output(c, 0), input(c, 0), input(c, 1), [scale](float g, float m) { return g * m * scale; });
}

}  // namespace foreshard::kernels
