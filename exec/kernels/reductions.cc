#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "exec/kernels/kernel_functions.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/rows.h"

namespace foreshard::kernels {
namespace {

/// For each dimension of x whether it is reduced; see op_operands.md, row sum.
std::vector<bool> reduced_dimensions(const KernelCall& c, const TensorView& x,
                                     const TensorView& y) {
  std::vector<bool> reduced(static_cast<std::size_t>(x.rank), false);
  if (!c.attributes.empty()) {
    for (std::size_t i = 0; i < c.attributes.size(); ++i) {
      reduced[static_cast<std::size_t>(dimension_attribute(c, i, 0, x.rank))] = true;
    }
    return reduced;
  }
  for (int d = 0; d < x.rank; ++d) {
    const int source = d - (x.rank - y.rank);
    const auto dim = static_cast<std::size_t>(d);
    reduced[dim] =
        source < 0 || (y.shape[static_cast<std::size_t>(source)] == 1 && x.shape[dim] != 1);
  }
  return reduced;
}

/// Row-major strides in y of every dimension of x; 0 where it is reduced.
std::vector<std::int64_t> target_strides(const TensorView& x, const std::vector<bool>& reduced) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(x.rank), 0);
  std::int64_t stride = 1;
  for (int d = x.rank - 1; d >= 0; --d) {
    const auto dim = static_cast<std::size_t>(d);
    if (reduced[dim]) continue;
    strides[dim] = stride;
    stride *= x.shape[dim];
  }
  return strides;
}

double p_norm(const std::vector<float>& x, double p) {
  double total = 0;
  if (std::isinf(p)) {
    for (const float v : x) total = std::max(total, std::fabs(static_cast<double>(v)));
    return total;
  }
  if (p == 2) {
    for (const float v : x) total += static_cast<double>(v) * static_cast<double>(v);
    return std::sqrt(total);
  }
  for (const float v : x) total += std::pow(std::fabs(static_cast<double>(v)), p);
  return std::pow(total, 1 / p);
}

/// Calls f(row index, row, indices) with the order of the row's elements that `less` gives.
template <typename Less>
void ordered_rows(const KernelCall& c, Less less) {
  const TensorView& x = input(c, 0);
  const TensorView& values = output(c, 0);
  const std::int64_t n = x.shape[static_cast<std::size_t>(x.rank - 1)];
  const std::int64_t k = values.shape[static_cast<std::size_t>(values.rank - 1)];
  const std::vector<float> data = to_floats(x);
  std::vector<float> out;
  std::vector<std::int64_t> order(static_cast<std::size_t>(n)), indices;
  for (std::size_t row = 0; row < data.size(); row += static_cast<std::size_t>(n)) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return less(data[row + static_cast<std::size_t>(a)], data[row + static_cast<std::size_t>(b)]);
    });
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t at = order[static_cast<std::size_t>(i)];
      out.push_back(data[row + static_cast<std::size_t>(at)]);
      indices.push_back(at);
    }
  }
  from_floats(values, out.data());
  if (c.has_output(1)) from_integers(c.outputs[1], indices.data());
}

}  // namespace

// Also mean. Adds in double, so that the result does not depend on the order.
void sum(const KernelCall& c) {
  const TensorView& x = input(c, 0);
  const TensorView& y = output(c, 0);
  std::vector<bool> reduced = reduced_dimensions(c, x, y);
  if (y.numel() == 1 && c.attributes.empty()) reduced.assign(reduced.size(), true);
  const std::vector<std::int64_t> strides = target_strides(x, reduced);
  std::vector<double> sums(static_cast<std::size_t>(y.numel()), 0.0);
  const std::vector<float> values = to_floats(x);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::int64_t rest = static_cast<std::int64_t>(i), at = 0;
    for (int d = x.rank - 1; d >= 0; --d) {
      const auto dim = static_cast<std::size_t>(d);
      at += rest % x.shape[dim] * strides[dim];
      rest /= x.shape[dim];
    }
    if (at >= y.numel())
      kernel_error(fmt::format("{} does not reduce to {}", shape_text(x), shape_text(y)));
    sums[static_cast<std::size_t>(at)] += static_cast<double>(values[i]);
  }
  const double count =
      y.numel() > 0 ? static_cast<double>(x.numel()) / static_cast<double>(y.numel()) : 1;
  std::vector<float> out(sums.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(c.op == OpKind::kMean ? sums[i] / count : sums[i]);
  }
  from_floats(y, out.data());
}

void norm(const KernelCall& c) {
  const std::vector<float> values = to_floats(input(c, 0));
  const std::int64_t rows = output(c, 0).numel();
  const std::size_t n = rows > 0 ? values.size() / static_cast<std::size_t>(rows) : 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = values.data() + static_cast<std::size_t>(r) * n;
    store_element(output(c, 0), r, p_norm({row, row + n}, c.attribute(0, 2)));
  }
}

void foreach_norm(const KernelCall& c) {
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const double value = p_norm(to_floats(input(c, i)), c.attribute(0, 2));
    if (c.outputs.size() == 1 && c.inputs.size() > 1) {
      store_element(output(c, 0), static_cast<std::int64_t>(i), value);
    } else {
      store_element(output(c, i), 0, value);
    }
  }
}

void amax(const KernelCall& c) {
  store_element(output(c, 0), 0, p_norm(to_floats(input(c, 0)), INFINITY));
}

void check_finite(const KernelCall& c) {
  bool finite = true;
  for (const TensorView& x : c.inputs) {
    for (const float v : to_floats(x)) finite = finite && std::isfinite(v);
  }
  store_element(output(c, 0), 0, finite ? 1 : 0);
}

void cumsum(const KernelCall& c) {
  const int dim = dimension_attribute(c, 0, -1, input(c, 0).rank);
  const TensorView x = transposed(input(c, 0), dim, input(c, 0).rank - 1);
  const TensorView y = transposed(output(c, 0), dim, output(c, 0).rank - 1);
  const auto n = static_cast<std::size_t>(x.shape[static_cast<std::size_t>(x.rank - 1)]);
  const bool reversed = c.attribute(1, 0) != 0;
  std::vector<float> values = to_floats(x);
  for (std::size_t row = 0; n > 0 && row < values.size(); row += n) {
    double total = 0;
    for (std::size_t k = 0; k < n; ++k) {
      float& value = values[reversed ? row + n - 1 - k : row + k];
      value = static_cast<float>(total += static_cast<double>(value));
    }
  }
  from_floats(y, values.data());
}

void topk(const KernelCall& c) {
  ordered_rows(c, [](float a, float b) { return a > b; });
}

void sort(const KernelCall& c) {
  const bool descending = c.attribute(0, 0) != 0;
  ordered_rows(c, [descending](float a, float b) { return descending ? a > b : a < b; });
}

}  // namespace foreshard::kernels
