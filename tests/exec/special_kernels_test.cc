// Kernels that only some families need, against plain references; gradients against central
// differences.

#include <cmath>

#include <gtest/gtest.h>

#include "tests/exec/host_tensor.h"

namespace foreshard::fixture {
namespace {

double total(const Values& weights, const Values& values) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += weights[i] * values[i];
  return sum;
}

TEST(SpecialKernels, DepthwiseConvolutionAndItsGradients) {
  HostTensor x({2, 3, 5}), w({3, 1, 4}), y({2, 3, 8}), grad({2, 3, 8}), gx({2, 3, 5}),
      gw({3, 1, 4});
  x.wave(0.2);
  w.wave(0.9);
  grad.wave(1.3);
  const auto reference = [](const Values& xs, const Values& ws) {
    Values out;
    for (std::size_t row = 0; row < 6; ++row) {
      for (int o = 0; o < 8; ++o) {
        double sum = 0;
        for (int t = 0; t < 4; ++t) {
          const int i = o + t - 3;
          if (i >= 0 && i < 5)
            sum += xs[row * 5 + static_cast<std::size_t>(i)] *
                   ws[row % 3 * 4 + static_cast<std::size_t>(t)];
        }
        out.push_back(sum);
      }
    }
    return out;
  };
  const Values xs = x.values(), ws = w.values(), g = grad.values();
  Call{OpKind::kConv1dDepthwise, {x, w}, {y}, {3}}.run();
  expect_near(y.values(), reference(xs, ws), 1e-6);
  Call{OpKind::kConv1dDepthwiseBackward, {grad, x, w}, {gx, gw}, {3}}.run();
  expect_near(gx.values(),
              gradient_of([&](const Values& v) { return total(g, reference(v, ws)); }, xs), 1e-5);
  expect_near(gw.values(),
              gradient_of([&](const Values& v) { return total(g, reference(xs, v)); }, ws), 1e-5);
}

TEST(SpecialKernels, AveragePool) {
  HostTensor x({1, 1, 2, 4}), y({1, 1, 1, 2}), gx({1, 1, 2, 4});
  x.set({1, 2, 3, 4, 5, 6, 7, 8});
  Call{OpKind::kAvgPool2d, {x}, {y}, {2}}.run();
  EXPECT_EQ(y.values(), (Values{3.5, 5.5}));
  Call{OpKind::kAvgPool2dBackward, {y}, {gx}, {2}}.run();
  EXPECT_EQ(gx.values(), (Values{0.875, 0.875, 1.375, 1.375, 0.875, 0.875, 1.375, 1.375}));
}

TEST(SpecialKernels, TriangularSystemsIgnoreTheOtherHalfAndTheDiagonal) {
  // [1 0; 2 1] x = b and [1 2; 0 1] x = b, with values that must not be read.
  HostTensor a({1, 2, 2}), b({1, 2, 2}), x({1, 2, 2});
  b.set({1, 2, 3, 4});
  a.set({9, 9, 2, 9});
  Call{OpKind::kSolveTriangular, {a, b}, {x}, {0}}.run();
  EXPECT_EQ(x.values(), (Values{1, 2, 1, 0}));
  a.set({9, 2, 9, 9});
  Call{OpKind::kSolveTriangular, {a, b}, {x}, {1}}.run();
  EXPECT_EQ(x.values(), (Values{-5, -6, 3, 4}));
}

TEST(SpecialKernels, MaskedRows) {
  HostTensor x({1, 3, 2}), mask({1, 3, 1}, DType::kBool), rows({1, 2}), y({1, 3, 2}),
      picked({1, 2});
  x.set({1, 2, 3, 4, 5, 6});
  mask.set({0, 1, 0});
  rows.set({7, 8});
  Call{OpKind::kMaskedScatter, {x, mask, rows}, {y}, {}}.run();
  EXPECT_EQ(y.values(), (Values{1, 2, 7, 8, 5, 6}));
  Call{OpKind::kMaskedSelect, {x, mask}, {picked}, {}}.run();
  EXPECT_EQ(picked.values(), (Values{3, 4}));
}

TEST(SpecialKernels, RelativeBucketsAreThoseOfT5) {
  // T5Attention._relative_position_bucket of transformers 5.24, 32 buckets, distance 128.
  HostTensor d({9}, DType::kInt64), bucket({9}, DType::kInt64);
  d.set({-200, -40, -8, -1, 0, 1, 7, 20, 300});
  Call{OpKind::kRelativeBucket, {d}, {bucket}, {1, 32, 128}}.run();
  EXPECT_EQ(bucket.values(), (Values{15, 12, 8, 1, 0, 17, 23, 26, 31}));
  Call{OpKind::kRelativeBucket, {d}, {bucket}, {0, 32, 128}}.run();
  EXPECT_EQ(bucket.values(), (Values{31, 23, 8, 1, 0, 0, 0, 0, 0}));
}

TEST(SpecialKernels, ElementWise) {
  HostTensor x({4}), y({4}), grad({4});
  x.set({-2, 0.5, 3, 25});
  grad.set({1, 2, 3, 4});
  Call{OpKind::kClamp, {x}, {y}, {-1, 2}}.run();
  EXPECT_EQ(y.values(), (Values{-1, 0.5, 2, 2}));
  Call{OpKind::kSoftplus, {x}, {y}, {}}.run();
  expect_near(
      y.values(),
      {std::log1p(std::exp(-2.0)), std::log1p(std::exp(0.5)), std::log1p(std::exp(3.0)), 25}, 1e-6);
  Call{OpKind::kSoftplusBackward, {grad, x}, {y}, {}}.run();
  expect_near(y.values(),
              {1 / (1 + std::exp(2.0)), 2 / (1 + std::exp(-0.5)), 3 / (1 + std::exp(-3.0)), 4},
              1e-6);
  Call{OpKind::kSign, {x}, {y}, {}}.run();
  EXPECT_EQ(y.values(), (Values{-1, 1, 1, 1}));
}

TEST(SpecialKernels, NormsOfRowsAndSumsFromTheEnd) {
  HostTensor x({2, 3}), norm({2, 1}), sums({2, 3});
  x.set({1, -2, 2, 0, 3, -4});
  Call{OpKind::kNorm, {x}, {norm}, {1}}.run();
  EXPECT_EQ(norm.values(), (Values{5, 7}));
  Call{OpKind::kNorm, {x}, {norm}, {2}}.run();
  EXPECT_EQ(norm.values(), (Values{3, 5}));
  Call{OpKind::kCumsum, {x}, {sums}, {-1, 1}}.run();
  EXPECT_EQ(sums.values(), (Values{1, 0, 2, -1, -1, -4}));
}

TEST(SpecialKernels, GradientOfAnAddedMask) {
  // One head, two queries, two keys, value width 1: d loss / d mask of softmax(q k + mask) v by
  // differences.
  HostTensor q({1, 1, 2, 1}), k({1, 1, 2, 1}), v({1, 1, 2, 1}), mask({1, 1, 2, 2}), o({1, 1, 2, 1}),
      lse({1, 1, 2});
  HostTensor go({1, 1, 2, 1}), gq({1, 1, 2, 1}), gk({1, 1, 2, 1}), gv({1, 1, 2, 1}),
      gmask({1, 1, 2, 2});
  q.wave(0.1);
  k.wave(0.5);
  v.wave(0.8);
  mask.wave(1.4);
  go.wave(2.2);
  const Values qs = q.values(), ks = k.values(), vs = v.values(), g = go.values();
  const auto loss = [&](const Values& m) {
    double sum = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const double a = std::exp(qs[i] * ks[0] + m[2 * i]),
                   b = std::exp(qs[i] * ks[1] + m[2 * i + 1]);
      sum += g[i] * (a * vs[0] + b * vs[1]) / (a + b);
    }
    return sum;
  };
  Call{OpKind::kEfficientAttention, {q, k, v, mask}, {o, lse}, {0, 1}}.run();
  Call{
      OpKind::kEfficientAttentionBackward, {go, q, k, v, o, lse, mask}, {gq, gk, gv, gmask}, {0, 1}}
      .run();
  expect_near(gmask.values(), gradient_of(loss, mask.values()), 1e-5);
}

}  // namespace
}  // namespace foreshard::fixture
