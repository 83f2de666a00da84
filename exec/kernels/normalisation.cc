#include <cmath>
#include <cstdint>
#include <vector>

#include "exec/kernels/kernel_functions.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/rows.h"

// Layer norm and RMS norm over the trailing dimensions. Sums of a row are kept in double and
// rounded to fp32.

namespace foreshard::kernels {
namespace {

/// Length of a normalised row: what is left of x after the rows counted by a statistic, else the
/// weight's size.
std::size_t row_length(const TensorView& x, const TensorView* statistic, const TensorView* weight) {
  if (statistic) {
    const std::int64_t rows = statistic->numel();
    if (rows == 0 || x.numel() % rows != 0)
      kernel_error("the statistics do not fit the input " + shape_text(x));
    return static_cast<std::size_t>(x.numel() / rows);
  }
  if (weight) return static_cast<std::size_t>(weight->numel());
  return static_cast<std::size_t>(x.shape[static_cast<std::size_t>(x.rank - 1)]);
}

const TensorView* optional_input(const KernelCall& c, std::size_t i) {
  return c.has_input(i) ? &c.inputs[i] : nullptr;
}
const TensorView* optional_output(const KernelCall& c, std::size_t i) {
  return c.has_output(i) ? &c.outputs[i] : nullptr;
}

std::vector<float> optional_floats(const KernelCall& c, std::size_t i) {
  return c.has_input(i) ? to_floats(c.inputs[i]) : std::vector<float>();
}

void check_length(const std::vector<float>& weight, std::size_t n) {
  if (!weight.empty() && weight.size() != n)
    kernel_error("the weight does not fit the normalised dimensions");
}

}  // namespace

void layer_norm(const KernelCall& c) {
  const TensorView& x = input(c, 0);
  if (x.numel() == 0) return;
  const std::size_t n = row_length(x, optional_output(c, 1), optional_input(c, 1));
  const std::vector<float> weight = optional_floats(c, 1), bias = optional_floats(c, 2);
  check_length(weight, n);
  const double eps = c.attribute(0, 1e-5);
  std::vector<float> values = to_floats(x), means, rstds;
  for (std::size_t row = 0; row < values.size(); row += n) {
    float* v = values.data() + row;
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(v[i]);
    const double mean = sum / static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i)
      squares += (static_cast<double>(v[i]) - mean) * (static_cast<double>(v[i]) - mean);
    const auto m = static_cast<float>(mean);
    const auto rstd = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(n) + eps));
    for (std::size_t i = 0; i < n; ++i) {
      v[i] = (v[i] - m) * rstd;
      if (!weight.empty()) v[i] *= weight[i];
      if (!bias.empty()) v[i] += bias[i];
    }
    means.push_back(m);
    rstds.push_back(rstd);
  }
  from_floats(output(c, 0), values.data());
  if (c.has_output(1)) from_floats(c.outputs[1], means.data());
  if (c.has_output(2)) from_floats(c.outputs[2], rstds.data());
}

// With h = (x - mean) rstd and g = grad weight: gx = rstd (g - mean(g) - h mean(g h)).
void layer_norm_backward(const KernelCall& c) {
  const TensorView& x = input(c, 1);
  if (x.numel() == 0) return;
  const std::size_t n = row_length(x, &input(c, 2), nullptr);
  const std::vector<float> means = to_floats(input(c, 2)), rstds = to_floats(input(c, 3)),
                           weight = optional_floats(c, 4);
  check_length(weight, n);
  std::vector<float> values = to_floats(x), grad = to_floats(input(c, 0));
  for (std::size_t row = 0, r = 0; row < values.size(); row += n, ++r) {
    float* h = values.data() + row;
    float* g = grad.data() + row;
    double sum = 0, dot = 0;
    for (std::size_t i = 0; i < n; ++i) {
      h[i] = (h[i] - means[r]) * rstds[r];
      if (!weight.empty()) g[i] *= weight[i];
      sum += static_cast<double>(g[i]);
      dot += static_cast<double>(g[i]) * static_cast<double>(h[i]);
    }
    const auto a = static_cast<float>(sum / static_cast<double>(n)),
               b = static_cast<float>(dot / static_cast<double>(n));
    for (std::size_t i = 0; i < n; ++i) g[i] = rstds[r] * (g[i] - a - h[i] * b);
  }
  from_floats(output(c, 0), grad.data());
}

void layer_norm_backward_gamma(const KernelCall& c) {
  const TensorView& x = input(c, 1);
  const auto n = static_cast<std::size_t>(output(c, c.has_output(0) ? 0 : 1).numel());
  const std::vector<float> means = to_floats(input(c, 2)), rstds = to_floats(input(c, 3));
  const std::vector<float> values = to_floats(x), grad = to_floats(input(c, 0));
  std::vector<double> gweight(n, 0), gbias(n, 0);
  for (std::size_t row = 0, r = 0; row + n <= values.size(); row += n, ++r) {
    for (std::size_t i = 0; i < n; ++i) {
      const auto g = static_cast<double>(grad[row + i]);
      gweight[i] += g * static_cast<double>((values[row + i] - means[r]) * rstds[r]);
      gbias[i] += g;
    }
  }
  if (c.has_output(0))
    from_floats(c.outputs[0], std::vector<float>(gweight.begin(), gweight.end()).data());
  if (c.has_output(1))
    from_floats(c.outputs[1], std::vector<float>(gbias.begin(), gbias.end()).data());
}

void rms_norm(const KernelCall& c) {
  const TensorView& x = input(c, 0);
  if (x.numel() == 0) return;
  const std::size_t n = row_length(x, optional_output(c, 1), optional_input(c, 1));
  const std::vector<float> weight = optional_floats(c, 1);
  check_length(weight, n);
  const double eps = c.attribute(0, 1e-5);
  std::vector<float> values = to_floats(x), rstds;
  for (std::size_t row = 0; row < values.size(); row += n) {
    float* v = values.data() + row;
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i)
      squares += static_cast<double>(v[i]) * static_cast<double>(v[i]);
    const auto rstd = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(n) + eps));
    for (std::size_t i = 0; i < n; ++i)
      v[i] = weight.empty() ? v[i] * rstd : v[i] * rstd * weight[i];
    rstds.push_back(rstd);
  }
  from_floats(output(c, 0), values.data());
  if (c.has_output(1)) from_floats(c.outputs[1], rstds.data());
}

// With h = x rstd and g = grad weight: gx = rstd (g - h mean(g h)).
void rms_norm_backward(const KernelCall& c) {
  const TensorView& x = input(c, 1);
  if (x.numel() == 0) return;
  const std::size_t n = row_length(x, &input(c, 2), nullptr);
  const std::vector<float> rstds = to_floats(input(c, 2)), weight = optional_floats(c, 3);
  check_length(weight, n);
  std::vector<float> values = to_floats(x), grad = to_floats(input(c, 0));
  for (std::size_t row = 0, r = 0; row < values.size(); row += n, ++r) {
    float* h = values.data() + row;
    float* g = grad.data() + row;
    double dot = 0;
    for (std::size_t i = 0; i < n; ++i) {
      h[i] *= rstds[r];
      if (!weight.empty()) g[i] *= weight[i];
      dot += static_cast<double>(g[i]) * static_cast<double>(h[i]);
    }
    const auto b = static_cast<float>(dot / static_cast<double>(n));
    for (std::size_t i = 0; i < n; ++i) g[i] = rstds[r] * (g[i] - h[i] * b);
  }
  from_floats(output(c, 0), grad.data());
}

void rms_norm_backward_gamma(const KernelCall& c) {
  const auto n = static_cast<std::size_t>(output(c, 0).numel());
  const std::vector<float> rstds = to_floats(input(c, 2));
  const std::vector<float> values = to_floats(input(c, 1)), grad = to_floats(input(c, 0));
  std::vector<double> gweight(n, 0);
  for (std::size_t row = 0, r = 0; row + n <= values.size(); row += n, ++r) {
    for (std::size_t i = 0; i < n; ++i) {
      gweight[i] +=
          static_cast<double>(grad[row + i]) * static_cast<double>(values[row + i] * rstds[r]);
    }
  }
  from_floats(output(c, 0), std::vector<float>(gweight.begin(), gweight.end()).data());
}

}  // namespace foreshard::kernels
