// Matrix products and convolutions against plain double-precision references; gradients against
// central differences of those references.

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/exec/by_type.h"

namespace foreshard::fixture {
namespace {

class Products : public ByType {};
INSTANTIATE_TEST_SUITE_P(Types, Products, kFloatingTypes, type_name);

TEST_P(Products, MatmulOverLayouts) {
  // a [2, 3, 4] x b [4, 5], each in several memory orders.
  for (const std::vector<int>& order_a : {std::vector<int>{0, 1, 2}, {0, 2, 1}, {1, 0, 2}}) {
    for (const std::vector<int>& order_b : {std::vector<int>{0, 1}, {1, 0}}) {
      for (const std::int64_t gap : {0, 1}) {
        HostTensor a({2, 3, 4}, type, order_a, gap), b({4, 5}, type, order_b, gap),
            c({2, 3, 5}, type, {1, 0, 2}, gap);
        a.wave(0.3);
        b.wave(1.1);
        Call{OpKind::kMatmul, {a, b}, {c}, {}}.run();
        const Values x = a.values(), y = b.values();
        Values expected;
        for (std::size_t r = 0; r < 6; ++r) {
          for (std::size_t j = 0; j < 5; ++j) {
            double sum = 0;
            for (std::size_t k = 0; k < 4; ++k) sum += x[r * 4 + k] * y[k * 5 + j];
            expected.push_back(sum);
          }
        }
        expect_near(c.values(), expected, tolerance);
      }
    }
  }
}

TEST_P(Products, MatmulBroadcastsTheBatchAndAddsTheBias) {
  HostTensor a({2, 2, 3, 4}, type), b({2, 1, 4, 3}, type), c({2, 2, 3, 3}, type), bias({3}, type);
  a.wave(0.1);
  b.wave(2);
  bias.wave(3, 10);
  const Values x = a.values(), y = b.values(), z = bias.values();
  Values expected;
  for (std::size_t p = 0; p < 2; ++p) {
    for (std::size_t q = 0; q < 2; ++q) {
      for (std::size_t i = 0; i < 3; ++i) {
        for (std::size_t j = 0; j < 3; ++j) {
          double sum = z[j];
          for (std::size_t k = 0; k < 4; ++k)
            sum += x[((p * 2 + q) * 3 + i) * 4 + k] * y[(p * 4 + k) * 3 + j];
          expected.push_back(sum);
        }
      }
    }
  }
  Call{OpKind::kMatmulBias, {bias, a, b}, {c}, {}}.run();
  expect_near(c.values(), expected, tolerance);
}

TEST(Matmul, RefusesShapesThatDoNotFit) {
  HostTensor a({2, 3}), b({4, 2}), c({2, 2});
  EXPECT_THROW((Call{OpKind::kMatmul, {a, b}, {c}, {}}.run()), RunError);
}

TEST(Kernels, ConvolutionAndItsGradients) {
  HostTensor x({2, 2, 5, 4}), w({3, 2, 3, 2}), bias({3}), y({2, 3, 3, 3});
  x.wave(0.1);
  w.wave(0.6);
  bias.wave(1);
  // stride 2, padding 1: (5 + 2 - 3) / 2 + 1 = 3 rows, (4 + 2 - 2) / 2 + 1 = 3 columns
  const auto reference = [](const Values& xs, const Values& ws, const Values& bs) {
    Values out;
    for (int n = 0; n < 2; ++n)
      for (int f = 0; f < 3; ++f)
        for (int i = 0; i < 3; ++i)
          for (int j = 0; j < 3; ++j) {
            double sum = bs[static_cast<std::size_t>(f)];
            for (int c = 0; c < 2; ++c)
              for (int r = 0; r < 3; ++r)
                for (int s = 0; s < 2; ++s) {
                  const int row = 2 * i + r - 1, column = 2 * j + s - 1;
                  if (row < 0 || column < 0 || row >= 5 || column >= 4) continue;
                  sum += xs[static_cast<std::size_t>(((n * 2 + c) * 5 + row) * 4 + column)] *
                         ws[static_cast<std::size_t>(((f * 2 + c) * 3 + r) * 2 + s)];
                }
            out.push_back(sum);
          }
    return out;
  };
  Call{OpKind::kConv2d, {x, w, bias}, {y}, {2, 1}}.run();
  const Values xs = x.values(), ws = w.values(), bs = bias.values();
  expect_near(y.values(), reference(xs, ws, bs), 1e-6);
  HostTensor grad({2, 3, 3, 3}), gx({2, 2, 5, 4}), gw({3, 2, 3, 2}), gb({3});
  grad.wave(2);
  const Values g = grad.values();
  Call{OpKind::kConv2dBackward, {grad, x, w}, {gx, gw, gb}, {2, 1}}.run();
  expect_near(gx.values(),
              gradient_of([&](const Values& v) { return dot(g, reference(v, ws, bs)); }, xs), 1e-5);
  expect_near(gw.values(),
              gradient_of([&](const Values& v) { return dot(g, reference(xs, v, bs)); }, ws), 1e-5);
  expect_near(gb.values(),
              gradient_of([&](const Values& v) { return dot(g, reference(xs, ws, v)); }, bs), 1e-5);
}

TEST(Kernels, GroupedMatmul) {
  HostTensor a({5, 2}), b({3, 2, 2}), rows({3}, DType::kInt64), c({5, 2});
  a.set({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  b.set({1, 0, 0, 1, 2, 0, 0, 2, 0, 1, 1, 0});
  rows.set({2, 0, 3});
  Call{OpKind::kGroupedMatmul, {a, b, rows}, {c}, {}}.run();
  EXPECT_EQ(c.values(), (Values{1, 2, 3, 4, 6, 5, 8, 7, 10, 9}));
}

// One matrix a group: rows 0 and 1, none, rows 2 to 4. First [1 3; 2 4] [1; 3] = [10; 14], last
// [5 7 9; 6 8 10] [5; 7; 9] = [155; 176].
TEST(Kernels, GroupedMatmulOverRows) {
  HostTensor a({5, 2}), b({5, 1}), rows({3}, DType::kInt64), c({3, 2, 1});
  a.set({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  b.set({1, 3, 5, 7, 9});
  rows.set({2, 0, 3});
  c.set({9, 9, 9, 9, 9, 9});
  Call{OpKind::kGroupedMatmul, {a, b, rows}, {c}, {}}.run();
  EXPECT_EQ(c.values(), (Values{10, 14, 0, 0, 155, 176}));
  HostTensor wrong({5, 1});
  EXPECT_THROW((Call{OpKind::kGroupedMatmul, {a, b, rows}, {wrong}, {}}.run()), RunError);
}

}  // namespace
}  // namespace foreshard::fixture
