// Sums, norms, softmax and losses against plain double-precision references; gradients against
// central differences of those references.

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/exec/by_type.h"

namespace foreshard::fixture {
namespace {

class Reductions : public ByType {};
INSTANTIATE_TEST_SUITE_P(Types, Reductions, kFloatingTypes, type_name);

TEST(Kernels, SumsAndMeans) {
  HostTensor x({2, 3, 2}, DType::kFloat32, {2, 1, 0});
  x.set({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  HostTensor rows({2, 3}), middle({2, 1, 2}), bias({2}), all({}), mean({2, 3, 1});
  Call{OpKind::kSum, {x}, {rows}, {-1}}.run();
  EXPECT_EQ(rows.values(), (Values{3, 7, 11, 15, 19, 23}));
  Call{OpKind::kSum, {x}, {middle}, {1}}.run();
  EXPECT_EQ(middle.values(), (Values{9, 12, 27, 30}));
  Call{OpKind::kSum, {x}, {bias}, {}}.run();  // sum_to_size
  EXPECT_EQ(bias.values(), (Values{36, 42}));
  Call{OpKind::kSum, {x}, {all}, {}}.run();
  EXPECT_EQ(all.values(), (Values{78}));
  Call{OpKind::kMean, {x}, {mean}, {2}}.run();
  EXPECT_EQ(mean.values(), (Values{1.5, 3.5, 5.5, 7.5, 9.5, 11.5}));
}

TEST(Kernels, NormsAndClipping) {
  HostTensor a({2}), b({2, 2}), norms({2}), one({1}), total({1}), coefficient({1});
  a.set({3, 4});
  b.set({1, 1, 1, -1});
  Call{OpKind::kForeachNorm, {a, b}, {norms}, {2}}.run();
  EXPECT_EQ(norms.values(), (Values{5, 2}));
  Call{OpKind::kNorm, {norms}, {total}, {2}}.run();
  EXPECT_FLOAT_EQ(static_cast<float>(total.values()[0]), std::sqrt(29.0f));
  Call{OpKind::kNorm, {a}, {one}, {std::numeric_limits<double>::infinity()}}.run();
  EXPECT_EQ(one.values(), (Values{4}));
  // clip_grad_norm_: 2 / (sqrt(29) + 1e-6), and never above 1
  Call{OpKind::kClipCoefficient, {total}, {coefficient}, {2}}.run();
  EXPECT_NEAR(coefficient.values()[0], 2 / (std::sqrt(29.0) + 1e-6), 1e-7);
  Call{OpKind::kClipCoefficient, {total}, {coefficient}, {100}}.run();
  EXPECT_EQ(coefficient.values()[0], 1);
  Call{OpKind::kForeachMul, {a, b, coefficient}, {a, b}, {}}.run();
  EXPECT_EQ(a.values(), (Values{3, 4}));
}

TEST_P(Reductions, LayerNormAndItsGradients) {
  HostTensor x({3, 5}, type), weight({5}, type), bias({5}, type), y({3, 5}, type), mean({3, 1}),
      rstd({3, 1});
  x.wave(0.4, 2);
  weight.wave(1.5);
  bias.wave(2.5);
  Call{OpKind::kLayerNorm, {x, weight, bias}, {y, mean, rstd}, {1e-5}}.run();
  const auto reference = [](const Values& xs, const Values& w, const Values& b) {
    Values out;
    for (std::size_t r = 0; r < 3; ++r) {
      double m = 0, v = 0;
      for (std::size_t i = 0; i < 5; ++i) m += xs[r * 5 + i] / 5;
      for (std::size_t i = 0; i < 5; ++i) v += (xs[r * 5 + i] - m) * (xs[r * 5 + i] - m) / 5;
      for (std::size_t i = 0; i < 5; ++i)
        out.push_back((xs[r * 5 + i] - m) / std::sqrt(v + 1e-5) * w[i] + b[i]);
    }
    return out;
  };
  const Values xs = x.values(), w = weight.values(), b = bias.values();
  expect_near(y.values(), reference(xs, w, b), tolerance);
  HostTensor grad({3, 5}, type), gx({3, 5}, type), gw({5}, type), gb({5}, type);
  grad.wave(3.3);
  const Values g = grad.values();
  Call{OpKind::kLayerNormBackward, {grad, x, mean, rstd, weight}, {gx}, {}}.run();
  Call{OpKind::kLayerNormBackwardGamma, {grad, x, mean, rstd}, {gw, gb}, {}}.run();
  expect_near(gx.values(),
              gradient_of([&](const Values& v) { return dot(g, reference(v, w, b)); }, xs),
              tolerance + 1e-5);
  expect_near(gw.values(),
              gradient_of([&](const Values& v) { return dot(g, reference(xs, v, b)); }, w),
              tolerance + 1e-5);
  expect_near(gb.values(),
              gradient_of([&](const Values& v) { return dot(g, reference(xs, w, v)); }, b),
              tolerance + 1e-5);
}

TEST_P(Reductions, RmsNormAndItsGradients) {
  HostTensor x({2, 2, 6}, type), weight({6}, type), y({2, 2, 6}, type), rstd({2, 2, 1});
  x.wave(0.8, 3);
  weight.wave(1.9);
  Call{OpKind::kRmsNorm, {x, weight}, {y, rstd}, {1e-6}}.run();
  const auto reference = [](const Values& xs, const Values& w) {
    Values out;
    for (std::size_t r = 0; r < 4; ++r) {
      double v = 0;
      for (std::size_t i = 0; i < 6; ++i) v += xs[r * 6 + i] * xs[r * 6 + i] / 6;
      for (std::size_t i = 0; i < 6; ++i) out.push_back(xs[r * 6 + i] / std::sqrt(v + 1e-6) * w[i]);
    }
    return out;
  };
  const Values xs = x.values(), w = weight.values();
  expect_near(y.values(), reference(xs, w), tolerance);
  HostTensor grad({2, 2, 6}, type), gx({2, 2, 6}, type), gw({6}, type);
  grad.wave(0.5);
  const Values g = grad.values();
  Call{OpKind::kRmsNormBackward, {grad, x, rstd, weight}, {gx}, {}}.run();
  Call{OpKind::kRmsNormBackwardGamma, {grad, x, rstd}, {gw}, {}}.run();
  expect_near(gx.values(),
              gradient_of([&](const Values& v) { return dot(g, reference(v, w)); }, xs),
              tolerance + 1e-5);
  expect_near(gw.values(),
              gradient_of([&](const Values& v) { return dot(g, reference(xs, v)); }, w),
              tolerance + 1e-5);
}

Values softmax_reference(const Values& x, std::size_t n, bool logarithm) {
  Values y(x.size());
  for (std::size_t r = 0; r < x.size(); r += n) {
    double sum = 0;
    for (std::size_t i = r; i < r + n; ++i) sum += std::exp(x[i]);
    for (std::size_t i = r; i < r + n; ++i)
      y[i] = logarithm ? x[i] - std::log(sum) : std::exp(x[i]) / sum;
  }
  return y;
}

TEST_P(Reductions, SoftmaxAndLogSoftmax) {
  for (const bool logarithm : {false, true}) {
    HostTensor x({4, 6}, type), y({4, 6}, type), grad({4, 6}, type), gx({4, 6}, type);
    x.wave(0.6, 4);
    grad.wave(1.2);
    Call{logarithm ? OpKind::kLogSoftmax : OpKind::kSoftmax, {x}, {y}, {}}.run();
    const Values xs = x.values(), g = grad.values();
    expect_near(y.values(), softmax_reference(xs, 6, logarithm), tolerance);
    Call{logarithm ? OpKind::kLogSoftmaxBackward : OpKind::kSoftmaxBackward, {grad, y}, {gx}, {-1}}
        .run();
    const auto f = [&](const Values& v) { return dot(g, softmax_reference(v, 6, logarithm)); };
    // The gradient uses the rounded result: its relative error enters up to |y| times (log-softmax:
    // |y| <= 10).
    expect_near(gx.values(), gradient_of(f, xs), 12 * tolerance);
  }
}

TEST(Kernels, SoftmaxSurvivesLargeAndMaskedScores) {
  HostTensor x({2, 3}), y({2, 3});
  const double inf = std::numeric_limits<double>::infinity();
  x.set({1e4, 1e4, -inf, 0, -inf, -inf});
  Call{OpKind::kSoftmax, {x}, {y}, {}}.run();
  EXPECT_EQ(y.values(), (Values{0.5, 0.5, 0, 1, 0, 0}));
}

TEST(Kernels, CrossEntropyEqualsItsDefinition) {
  HostTensor x({4, 5}), logp({4, 5}), targets({4}, DType::kInt64), loss({}), weight({}), one({}),
      gp({4, 5}), gx({4, 5});
  x.wave(0.3, 2);
  targets.set({0, 4, -100, 2});
  one.set({1});
  Call{OpKind::kLogSoftmax, {x}, {logp}, {}}.run();
  Call{OpKind::kNllLoss, {logp, targets}, {loss, weight}, {}}.run();
  const auto reference = [](const Values& v) {
    const Values l = softmax_reference(v, 5, true);
    return -(l[0] + l[5 + 4] + l[15 + 2]) / 3;
  };
  EXPECT_NEAR(loss.values()[0], reference(x.values()), 1e-6);
  EXPECT_EQ(weight.values()[0], 3);
  Call{OpKind::kNllLossBackward, {one, targets, weight}, {gp}, {}}.run();
  Call{OpKind::kLogSoftmaxBackward, {gp, logp}, {gx}, {}}.run();
  expect_near(gx.values(), gradient_of(reference, x.values()), 1e-5);
  HostTensor gp_aten({4, 5});
  Call{OpKind::kNllLossBackward, {one, logp, targets, weight}, {gp_aten}, {}}.run();
  EXPECT_EQ(gp_aten.values(), gp.values());
  targets.set({0, 5, 1, 1});
  EXPECT_THROW((Call{OpKind::kNllLoss, {logp, targets}, {loss}, {}}.run()), RunError);
}

TEST(Kernels, FusedCrossEntropyIsLossAndGradientInOnePass) {
  HostTensor x({4, 5}), targets({4}, DType::kInt64), losses({4}), gx({4, 5});
  x.wave(0.3, 2);
  targets.set({0, 4, -100, 2});
  Call{OpKind::kFusedCrossEntropy, {x, targets}, {gx, losses}, {1.0 / 3}}.run();
  const auto reference = [](const Values& v) {
    const Values l = softmax_reference(v, 5, true);
    return -(l[0] + l[5 + 4] + l[15 + 2]) / 3;
  };
  const Values each = losses.values();
  EXPECT_NEAR(each[0] + each[1] + each[2] + each[3], reference(x.values()), 1e-6);
  EXPECT_EQ(each[2], 0);
  expect_near(gx.values(), gradient_of(reference, x.values()), 1e-5);
}

TEST(Kernels, MeanSquaredError) {
  HostTensor x({2, 3}), y({2, 3}), loss({}), grad({}), gx({2, 3});
  x.wave(0.1);
  y.wave(0.2);
  grad.set({1.5});
  Call{OpKind::kMseLoss, {x, y}, {loss}, {}}.run();
  const Values ys = y.values();
  const auto reference = [&](const Values& v) {
    double sum = 0;
    for (std::size_t i = 0; i < 6; ++i) sum += (v[i] - ys[i]) * (v[i] - ys[i]) / 6;
    return sum;
  };
  EXPECT_NEAR(loss.values()[0], reference(x.values()), 1e-6);
  Call{OpKind::kMseLossBackward, {grad, x, y}, {gx}, {}}.run();
  expect_near(gx.values(),
              gradient_of([&](const Values& v) { return 1.5 * reference(v); }, x.values()), 1e-5);
}

}  // namespace
}  // namespace foreshard::fixture
