#pragma once

// Tensors that own their memory, calls of single kernels, and gradients by finite differences, for
// kernel tests.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "exec/kernels/kernels.h"
#include "exec/kernels/rows.h"
#include "exec/rank_context.h"

namespace foreshard::fixture {

using Values = std::vector<double>;

using Shape = std::vector<std::int64_t>;

/// A tensor of any layout: `order` lists the dimensions from outermost to innermost in memory, with
/// gaps of `gap` elements.
class HostTensor {
 public:
  explicit HostTensor(Shape shape, DType dtype = DType::kFloat32, std::vector<int> order = {},
                      std::int64_t gap = 0) {
    view_.present = true;
    view_.dtype = dtype;
    view_.rank = static_cast<int>(shape.size());
    if (order.empty()) {
      for (int d = 0; d < view_.rank; ++d) order.push_back(d);
    }
    std::int64_t stride = 1 + gap;
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      const auto d = static_cast<std::size_t>(*it);
      view_.shape[d] = shape[d];
      view_.stride[d] = stride;
      stride *= shape[d];
    }
    memory_ =
        std::make_shared<std::vector<double>>(static_cast<std::size_t>(stride * 8 / 8 + 1), -777.0);
    view_.data = reinterpret_cast<std::byte*>(memory_->data());
  }

  const TensorView& view() const { return view_; }
  HostTensor& set(const std::vector<double>& values) {
    EXPECT_EQ(static_cast<std::int64_t>(values.size()), view_.numel());
    for (std::size_t i = 0; i < values.size(); ++i)
      store_element(view_, static_cast<std::int64_t>(i), values[i]);
    return *this;
  }
  /// Values that repeat nowhere and are not symmetric: sin of a seeded phase, times `scale`.
  HostTensor& wave(double seed, double scale = 1) {
    std::vector<double> v(static_cast<std::size_t>(view_.numel()));
    for (std::size_t i = 0; i < v.size(); ++i)
      v[i] = scale * std::sin(seed + 1.7 * static_cast<double>(i) +
                              0.3 * seed * static_cast<double>(i % 5));
    return set(v);
  }
  std::vector<double> values() const {
    const std::vector<float> f = to_floats(view_);
    return {f.begin(), f.end()};
  }

 private:
  std::shared_ptr<std::vector<double>> memory_;
  TensorView view_;
};

struct Call {
  OpKind op;
  std::vector<HostTensor> inputs, outputs;
  std::vector<double> attributes;
  int step = 0;

  void run() const {
    KernelCall c;
    c.op = op;
    c.origin.step = step;
    for (const HostTensor& t : inputs) c.inputs.push_back(t.view());
    for (const HostTensor& t : outputs) c.outputs.push_back(t.view());
    c.attributes = attributes;
    run_kernel(c);
  }
};

/// Half a unit in the last place of bf16 and of fp32, relative.
inline double rounding_of(DType t) {
  return t == DType::kBFloat16 ? 1.0 / 256 : t == DType::kFloat16 ? 1.0 / 2048 : 1e-7;
}

inline void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                        double tolerance, const std::string& what = "") {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double size = 0;
  for (const double e : expected) size = std::max(size, std::fabs(e));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * std::max(size, 1e-30))
        << what << " element " << i;
  }
}

/// d f / d x by central differences of a double-precision reference.
inline std::vector<double> gradient_of(const std::function<double(const std::vector<double>&)>& f,
                                       std::vector<double> x) {
  std::vector<double> g(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i], h = 1e-5;
    x[i] = at + h;
    const double up = f(x);
    x[i] = at - h;
    const double down = f(x);
    x[i] = at;
    g[i] = (up - down) / (2 * h);
  }
  return g;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace foreshard::fixture
