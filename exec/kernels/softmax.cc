#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "exec/kernels/kernel_functions.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/rows.h"

// Softmax, log-softmax and the losses. Sums are kept in double and rounded to fp32.

namespace foreshard::kernels {
namespace {

/// The view with the softmax dimension last, and the length of a row.
TensorView rows_last(const KernelCall& c, const TensorView& v) {
  if (v.rank == 0) return v;
  return transposed(v, dimension_attribute(c, 0, -1, v.rank), v.rank - 1);
}
std::size_t last_size(const TensorView& v) {
  return v.rank == 0 ? 1 : static_cast<std::size_t>(v.shape[static_cast<std::size_t>(v.rank - 1)]);
}

enum class Reduction { kNone = 0, kMean = 1, kSum = 2 };

/// Targets and how many of them count.
struct Targets {
  Targets(const TensorView& v, std::int64_t ignored_index)
      : values(to_integers(v)), ignored(ignored_index) {
    count = static_cast<std::int64_t>(
        std::count_if(values.begin(), values.end(), [&](auto t) { return t != ignored; }));
  }
  std::vector<std::int64_t> values;
  std::int64_t ignored, count = 0;
};

}  // namespace

void softmax(const KernelCall& c) {
  const TensorView x = rows_last(c, input(c, 0));
  const std::size_t n = last_size(x);
  std::vector<float> values = to_floats(x);
  const bool logarithm = c.op == OpKind::kLogSoftmax;
  for (std::size_t row = 0; n > 0 && row < values.size(); row += n) {
    float* v = values.data() + row;
    const float top = *std::max_element(v, v + n);
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(v[i] - top));
    const auto log_sum = static_cast<float>(std::log(sum));
    for (std::size_t i = 0; i < n; ++i) {
      v[i] = logarithm ? v[i] - top - log_sum
                       : static_cast<float>(std::exp(static_cast<double>(v[i] - top)) / sum);
    }
  }
  from_floats(rows_last(c, output(c, 0)), values.data());
}

// softmax: gx = y (g - Σ g y); log-softmax: gx = g - exp(y) Σ g.
void softmax_backward(const KernelCall& c) {
  const TensorView y = rows_last(c, input(c, 1));
  const std::size_t n = last_size(y);
  const std::vector<float> values = to_floats(y);
  std::vector<float> grad = to_floats(rows_last(c, input(c, 0)));
  const bool logarithm = c.op == OpKind::kLogSoftmaxBackward;
  for (std::size_t row = 0; n > 0 && row < values.size(); row += n) {
    const float* v = values.data() + row;
    float* g = grad.data() + row;
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      sum += logarithm ? static_cast<double>(g[i])
                       : static_cast<double>(g[i]) * static_cast<double>(v[i]);
    }
    const auto s = static_cast<float>(sum);
    for (std::size_t i = 0; i < n; ++i)
      g[i] = logarithm ? g[i] - std::exp(v[i]) * s : v[i] * (g[i] - s);
  }
  from_floats(rows_last(c, output(c, 0)), grad.data());
}

void nll_loss(const KernelCall& c) {
  const TensorView& log_probabilities = input(c, 0);
  const std::size_t classes = last_size(log_probabilities);
  const std::vector<float> values = to_floats(log_probabilities);
  const Targets targets(input(c, 1), integer_attribute(c, 1, -100));
  if (targets.values.size() * classes != values.size())
    kernel_error("targets and probabilities do not fit");
  const auto reduction = static_cast<Reduction>(integer_attribute(c, 0, 1));
  double sum = 0;
  std::vector<float> each(targets.values.size(), 0.0f);
  for (std::size_t i = 0; i < targets.values.size(); ++i) {
    const std::int64_t t = targets.values[i];
    if (t == targets.ignored) continue;
    if (t < 0 || t >= static_cast<std::int64_t>(classes))
      kernel_error(fmt::format("target {} of {} classes", t, classes));
    each[i] = -values[i * classes + static_cast<std::size_t>(t)];
    sum += static_cast<double>(each[i]);
  }
  if (reduction == Reduction::kNone) {
    from_floats(output(c, 0), each.data());
  } else {
    const double loss =
        reduction == Reduction::kMean ? sum / static_cast<double>(targets.count) : sum;
    store_element(output(c, 0), 0, loss);
  }
  if (c.has_output(1)) store_element(c.outputs[1], 0, static_cast<double>(targets.count));
}

void nll_loss_backward(const KernelCall& c) {
  const TensorView& out = output(c, 0);
  const std::size_t classes = last_size(out);
  const std::vector<float> grad = to_floats(input(c, 0));
  // ATen's order has the log-probabilities between gradient and targets: only targets are integers.
  const std::size_t at = is_floating(input(c, 1).dtype) ? 2 : 1;
  const Targets targets(input(c, at), integer_attribute(c, 1, -100));
  const auto reduction = static_cast<Reduction>(integer_attribute(c, 0, 1));
  const float divisor = reduction == Reduction::kMean ? static_cast<float>(targets.count) : 1.0f;
  std::vector<float> gx(static_cast<std::size_t>(out.numel()), 0.0f);
  if (targets.values.size() * classes != gx.size()) kernel_error("targets and gradient do not fit");
  for (std::size_t i = 0; i < targets.values.size(); ++i) {
    if (targets.values[i] == targets.ignored) continue;
    const float g = reduction == Reduction::kNone ? grad.at(i) : grad.at(0);
    gx.at(i * classes + static_cast<std::size_t>(targets.values[i])) = -g / divisor;
  }
  from_floats(out, gx.data());
}

void fused_cross_entropy(const KernelCall& c) {
  const TensorView& logits = input(c, 0);
  const std::size_t classes = last_size(logits);
  std::vector<float> values = to_floats(logits);
  const Targets targets(input(c, 1), integer_attribute(c, 1, -100));
  if (targets.values.size() * classes != values.size())
    kernel_error("targets and logits do not fit");
  const double scale = c.attribute(0, 1);
  std::vector<float> losses(targets.values.size(), 0.0f);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    float* row = values.data() + i * classes;
    const std::int64_t t = targets.values[i];
    if (t == targets.ignored) {
      std::fill(row, row + classes, 0.0f);
      continue;
    }
    if (t < 0 || t >= static_cast<std::int64_t>(classes))
      kernel_error(fmt::format("target {} of {} classes", t, classes));
    const float largest = *std::max_element(row, row + classes);
    double sum = 0;
    for (std::size_t k = 0; k < classes; ++k)
      sum += std::exp(static_cast<double>(row[k] - largest));
    const double log_sum = std::log(sum) + static_cast<double>(largest);
    losses[i] = static_cast<float>(scale * (log_sum - static_cast<double>(row[t])));
    for (std::size_t k = 0; k < classes; ++k) {
      const double p = std::exp(static_cast<double>(row[k]) - log_sum);
      row[k] = static_cast<float>(scale * (p - (static_cast<std::int64_t>(k) == t ? 1.0 : 0.0)));
    }
  }
  from_floats(output(c, 0), values.data());
  from_floats(output(c, 1), losses.data());
}

void mse_loss(const KernelCall& c) {
  const std::vector<float> x = to_floats(input(c, 0)), y = to_floats(input(c, 1));
  if (x.size() != y.size()) kernel_error("input and target differ in size");
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float d = x[i] - y[i];
    sum += static_cast<double>(d) * static_cast<double>(d);
  }
  const auto reduction = static_cast<Reduction>(integer_attribute(c, 0, 1));
  store_element(output(c, 0), 0,
                reduction == Reduction::kMean ? sum / static_cast<double>(x.size()) : sum);
}

void mse_loss_backward(const KernelCall& c) {
  const std::vector<float> x = to_floats(input(c, 1)), y = to_floats(input(c, 2));
  if (x.size() != y.size()) kernel_error("input and target differ in size");
  const auto reduction = static_cast<Reduction>(integer_attribute(c, 0, 1));
  float scale = 2.0f * scalar_of(input(c, 0));
  if (reduction == Reduction::kMean) scale /= static_cast<float>(x.size());
  std::vector<float> gx(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) gx[i] = scale * (x[i] - y[i]);
  from_floats(output(c, 0), gx.data());
}

}  // namespace foreshard::kernels
