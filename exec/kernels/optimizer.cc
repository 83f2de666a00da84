#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "exec/kernels/kernel_functions.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/map.h"
#include "exec/kernels/rows.h"
#include "exec/kernels/scalar_math.h"

// Optimizers and the tensor-list arithmetic they are made of. Scalars are computed in double, as
// Python does, and used in fp32, as the tensor kernels do.

namespace foreshard::kernels {
namespace {

/// Number of the running optimizer step, from 1.
int step_number(const KernelCall& c) { return c.origin.step + 1; }

void check_groups(const KernelCall& c, std::size_t groups) {
  if (c.inputs.size() != groups * c.outputs.size()) {
    kernel_error(fmt::format("{} inputs and {} outputs; {} inputs for each output are needed",
                             c.inputs.size(), c.outputs.size(), groups));
  }
}

/// b of foreach_add/mul/div as a scalar, for calls with one list only.
double list_scalar(const KernelCall& c) {
  const double value = c.attribute(0, c.op == OpKind::kForeachAdd ? 0 : 1);
  if (c.op == OpKind::kForeachDiv && c.attributes.size() == 2) {
    return std::sqrt(1 - std::pow(c.attributes[1], step_number(c)));
  }
  return value;
}

}  // namespace

void foreach_arithmetic(const KernelCall& c) {
  const std::size_t n = c.outputs.size();
  const bool two_lists = c.inputs.size() == 2 * n,
             one_for_all = !two_lists && c.inputs.size() == n + 1;
  if (!two_lists && !one_for_all) check_groups(c, 1);
  const auto alpha = static_cast<float>(two_lists || one_for_all ? c.attribute(0, 1) : 1);
  const auto scalar = static_cast<float>(two_lists || one_for_all ? 0 : list_scalar(c));
  for (std::size_t i = 0; i < n; ++i) {
    if (!c.has_input(i)) continue;
    const TensorView &y = output(c, i), &a = input(c, i);
    if (two_lists || one_for_all) {
      const TensorView& b = input(c, two_lists ? n + i : n);
      switch (c.op) {
        case OpKind::kForeachAdd:
          map(y, a, b, [alpha](float p, float q) { return p + alpha * q; });
          break;
        case OpKind::kForeachMul:
          map(y, a, b, [](float p, float q) { return p * q; });
          break;
        default:
          map(y, a, b, [](float p, float q) { return p / q; });
          break;
      }
      continue;
    }
    switch (c.op) {
      case OpKind::kForeachAdd:
        map(y, a, [scalar](float p) { return p + scalar; });
        break;
      case OpKind::kForeachMul:
        map(y, a, [scalar](float p) { return p * scalar; });
        break;
      default:
        map(y, a, [scalar](float p) { return p / scalar; });
        break;
    }
  }
}

void foreach_sqrt(const KernelCall& c) {
  check_groups(c, 1);
  for (std::size_t i = 0; i < c.outputs.size(); ++i)
    map(output(c, i), input(c, i), [](float a) { return std::sqrt(a); });
}

void foreach_lerp(const KernelCall& c) {
  check_groups(c, 2);
  const auto weight = static_cast<float>(c.attribute(0, 0));
  const std::size_t n = c.outputs.size();
  for (std::size_t i = 0; i < n; ++i) {
    map(output(c, i), input(c, i), input(c, n + i),
        [weight](float a, float b) { return a + weight * (b - a); });
  }
}

void foreach_addcmul(const KernelCall& c) {
  check_groups(c, 3);
  const auto value = static_cast<float>(c.attribute(0, 1));
  const std::size_t n = c.outputs.size();
  for (std::size_t i = 0; i < n; ++i) {
    map(output(c, i), input(c, i), input(c, n + i), input(c, 2 * n + i),
        [value](float a, float b, float d) { return a + value * b * d; });
  }
}

void foreach_addcdiv(const KernelCall& c) {
  check_groups(c, 3);
  double value = c.attribute(0, 1);
  if (c.attributes.size() == 3)
    value = -c.attributes[1] / (1 - std::pow(c.attributes[2], step_number(c)));
  const auto v = static_cast<float>(value);
  const std::size_t n = c.outputs.size();
  for (std::size_t i = 0; i < n; ++i) {
    map(output(c, i), input(c, i), input(c, n + i), input(c, 2 * n + i),
        [v](float a, float b, float d) { return a + v * b / d; });
  }
}

void adamw(const KernelCall& c) {
  const std::size_t groups = c.inputs.size() * 4 == c.outputs.size() * 5 ? 5 : 4;
  const std::size_t n = c.inputs.size() / groups;
  if (n * groups != c.inputs.size() || c.outputs.size() != n * (groups - 1)) {
    kernel_error(fmt::format("{} inputs and {} outputs are no AdamW lists", c.inputs.size(),
                             c.outputs.size()));
  }
  if (c.attributes.size() < 5) kernel_error("lr, beta1, beta2, eps and weight decay are needed");
  const double lr = c.attributes[0], beta1 = c.attributes[1], beta2 = c.attributes[2];
  const int t = step_number(c);
  const scalar::AdamWStep s{static_cast<float>(1 - lr * c.attributes[4]),
                            static_cast<float>(1 - beta1),
                            static_cast<float>(beta2),
                            static_cast<float>(1 - beta2),
                            static_cast<float>(lr / (1 - std::pow(beta1, t))),
                            static_cast<float>(std::sqrt(1 - std::pow(beta2, t))),
                            static_cast<float>(c.attributes[3])};
  for (std::size_t i = 0; i < n; ++i) {
    if (!c.has_input(i) || c.inputs[i].numel() == 0) continue;
    std::vector<float> param = to_floats(input(c, i)), average = to_floats(input(c, 2 * n + i)),
                       square = to_floats(input(c, 3 * n + i));
    const std::vector<float> grad = to_floats(input(c, n + i));
    if (grad.size() != param.size() || average.size() != param.size() ||
        square.size() != param.size()) {
      kernel_error(fmt::format("the tensors of parameter {} differ in size", i));
    }
    for (std::size_t k = 0; k < param.size(); ++k)
      scalar::adamw(s, grad[k], &param[k], &average[k], &square[k]);
    from_floats(output(c, i), param.data());
    from_floats(output(c, n + i), average.data());
    from_floats(output(c, 2 * n + i), square.data());
    if (groups == 5) store_element(output(c, 3 * n + i), 0, t);
  }
}

void sgd(const KernelCall& c) {
  const bool with_momentum = c.outputs.size() * 3 == c.inputs.size() * 2;
  const std::size_t n = c.inputs.size() / (with_momentum ? 3 : 2);
  if (c.outputs.size() != n * (with_momentum ? 2 : 1)) {
    kernel_error(fmt::format("{} inputs and {} outputs are no SGD lists", c.inputs.size(),
                             c.outputs.size()));
  }
  const auto lr = static_cast<float>(c.attribute(0, 0)),
             momentum = static_cast<float>(c.attribute(1, 0)),
             decay = static_cast<float>(c.attribute(2, 0));
  for (std::size_t i = 0; i < n; ++i) {
    if (!c.has_input(i) || c.inputs[i].numel() == 0) continue;
    std::vector<float> param = to_floats(input(c, i)), grad = to_floats(input(c, n + i)), buffer;
    if (grad.size() != param.size())
      kernel_error(fmt::format("the tensors of parameter {} differ in size", i));
    if (with_momentum) buffer = to_floats(input(c, 2 * n + i));
    for (std::size_t k = 0; k < param.size(); ++k) {
      float g = grad[k] + decay * param[k];
      if (with_momentum) g = buffer[k] = step_number(c) == 1 ? g : momentum * buffer[k] + g;
      param[k] -= lr * g;
    }
    from_floats(output(c, i), param.data());
    if (with_momentum) from_floats(output(c, n + i), buffer.data());
  }
}

// torch.nn.utils.clip_grad_norm_; a number divided by a tensor is the tensor's reciprocal times the
// number.
void clip_coefficient(const KernelCall& c) {
  const float coefficient =
      1.0f / (scalar_of(input(c, 0)) + 1e-6f) * static_cast<float>(c.attribute(0, 0));
  store_element(output(c, 0), 0, static_cast<double>(std::min(coefficient, 1.0f)));
}

}  // namespace foreshard::kernels
