// Kernels against plain double-precision references; gradients against central differences of those
// references.

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/exec/host_tensor.h"

namespace foreshard::fixture {
namespace {

using Values = std::vector<double>;

class ByType : public ::testing::TestWithParam<DType> {
 protected:
  DType type = GetParam();
  /// Error of one rounding of the result plus that of the fp32 arithmetic inside.
  double tolerance = rounding_of(GetParam()) * 1.01 + 1e-6;
};
INSTANTIATE_TEST_SUITE_P(Types, ByType,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& i) { return std::string(name_of(i.param)); });

TEST(Convert, BFloat16RoundsToNearestEven) {
  // 1 + 2^-8 lies between 1 and 1 + 2^-7: ties to even = 1; 1 + 3*2^-8 ties to 1 + 2^-6; a bit more
  // goes up.
  HostTensor t({3}, DType::kBFloat16);
  t.set({1 + 1.0 / 256, 1 + 3.0 / 256, 1 + 1.01 / 256});
  EXPECT_EQ(t.values(), (Values{1, 1 + 1.0 / 64, 1 + 1.0 / 128}));
}

TEST(Convert, Float16LimitsAndSubnormals) {
  HostTensor t({6}, DType::kFloat16);
  const double tiny = std::ldexp(1.0, -24);
  t.set({65504, 65519.9, 65520, tiny, tiny * 0.5, tiny * 1.5});
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(t.values(), (Values{65504, 65504, inf, tiny, 0, 2 * tiny}));
}

TEST_P(ByType, MatmulOverLayouts) {
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

TEST_P(ByType, MatmulBroadcastsTheBatchAndAddsTheBias) {
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

TEST_P(ByType, BinaryOpsBroadcast) {
  HostTensor a({2, 3, 4}, type, {2, 0, 1}), b({3, 1}, type), y({2, 3, 4}, type, {0, 2, 1}, 1);
  a.wave(0.7);
  b.wave(1.3, 2);
  const Values p = a.values(), q = b.values();
  const auto check = [&](OpKind op, Values attributes, auto f) {
    Call{op, {a, b}, {y}, attributes}.run();
    Values expected;
    for (std::size_t i = 0; i < p.size(); ++i) expected.push_back(f(p[i], q[i / 4 % 3]));
    expect_near(y.values(), expected, tolerance, std::string(name_of(op)));
  };
  check(OpKind::kAdd, {}, [](double u, double v) { return u + v; });
  check(OpKind::kAdd, {-3}, [](double u, double v) { return u - 3 * v; });
  check(OpKind::kSub, {}, [](double u, double v) { return u - v; });
  check(OpKind::kMul, {}, [](double u, double v) { return u * v; });
  check(OpKind::kDiv, {}, [](double u, double v) { return u / v; });
}

TEST_P(ByType, InPlaceOpsAcceptTheirOutputAsInput) {
  HostTensor a({5}, type), b({1}, type);
  a.wave(0.2);
  b.set({4});
  Values p = a.values();
  Call{OpKind::kAddInPlace, {a, b}, {a}, {0.5}}.run();
  for (double& v : p) v += 2;
  expect_near(a.values(), p, tolerance);
  p = a.values();
  Call{OpKind::kMulInPlace, {a}, {a}, {0.25}}.run();
  for (double& v : p) v *= 0.25;
  expect_near(a.values(), p, tolerance);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double gelu_erf(double x) { return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0))); }
double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

TEST_P(ByType, ActivationsAndTheirGradients) {
  struct Row {
    OpKind op, backward;
    Values attributes;
    double (*f)(double);
    bool backward_takes_result;
  };
  const Row rows[] = {
      {OpKind::kSilu, OpKind::kSiluBackward, {}, [](double x) { return x * sigmoid(x); }, false},
      {OpKind::kGelu, OpKind::kGeluBackward, {0}, gelu_erf, false},
      {OpKind::kGelu, OpKind::kGeluBackward, {1}, gelu_tanh, false},
      {OpKind::kRelu, OpKind::kReluBackward, {}, [](double x) { return x > 0 ? x : 0; }, true},
      {OpKind::kSigmoid, OpKind::kSigmoidBackward, {}, sigmoid, true},
      {OpKind::kTanh, OpKind::kTanhBackward, {}, [](double x) { return std::tanh(x); }, true},
      {OpKind::kSoftplus,
       OpKind::kSoftplusBackward,
       {},
       [](double x) { return std::log1p(std::exp(x)); },
       false},
  };
  for (const Row& row : rows) {
    HostTensor x({4, 7}, type, {1, 0}), y({4, 7}, type), grad({4, 7}, type), gx({4, 7}, type);
    x.wave(0.9, 3);
    grad.wave(2.1);
    Call{row.op, {x}, {y}, row.attributes}.run();
    Values expected, expected_gradient;
    for (const double v : x.values()) expected.push_back(row.f(v));
    expect_near(y.values(), expected, tolerance, std::string(name_of(row.op)));
    if (row.backward_takes_result) y.set(expected);
    Call{row.backward, {grad, row.backward_takes_result ? y : x}, {gx}, row.attributes}.run();
    const Values g = grad.values(), at = x.values();
    for (std::size_t i = 0; i < g.size(); ++i) {
      expected_gradient.push_back(g[i] * (row.f(at[i] + 1e-6) - row.f(at[i] - 1e-6)) / 2e-6);
    }
    // A rounded result as operand costs one more rounding of the gradient, near saturation more: 4
    // roundings.
    expect_near(gx.values(), expected_gradient, 4 * tolerance, std::string(name_of(row.backward)));
  }
}

TEST(Kernels, UnaryMath) {
  const auto check = [](OpKind op, Values attributes, double (*f)(double)) {
    HostTensor x({6}), y({6});
    x.set({0.1, 0.5, 1, 2, 3.5, 9});
    Call{op, {x}, {y}, attributes}.run();
    Values expected;
    for (const double v : x.values()) expected.push_back(f(v));
    expect_near(y.values(), expected, 1e-6, std::string(name_of(op)));
  };
  check(OpKind::kNeg, {}, [](double x) { return -x; });
  check(OpKind::kSqrt, {}, [](double x) { return std::sqrt(x); });
  check(OpKind::kRsqrt, {}, [](double x) { return 1 / std::sqrt(x); });
  check(OpKind::kCos, {}, [](double x) { return std::cos(x); });
  check(OpKind::kSin, {}, [](double x) { return std::sin(x); });
  check(OpKind::kExp, {}, [](double x) { return std::exp(x); });
  check(OpKind::kClamp, {0.4, 3}, [](double x) { return std::min(std::max(x, 0.4), 3.0); });
  check(OpKind::kPow, {2}, [](double x) { return x * x; });
  check(OpKind::kPow, {-0.5}, [](double x) { return 1 / std::sqrt(x); });
  check(OpKind::kAddScalar, {1.5}, [](double x) { return x + 1.5; });
  check(OpKind::kMulScalar, {-2}, [](double x) { return x * -2; });
}

TEST(Kernels, WhereAndCompare) {
  HostTensor x({4}), mask({4}, DType::kBool), y({4});
  x.set({-1, 2, 0, 3});
  Call{OpKind::kCompare, {x}, {mask}, {2, 0.5}}.run();
  EXPECT_EQ(mask.values(), (Values{0, 1, 0, 1}));
  HostTensor absent({1});
  Call{OpKind::kWhere, {mask, x}, {y}, {-9}}.run();
  EXPECT_EQ(y.values(), (Values{-9, 2, -9, 3}));
  Call{OpKind::kWhere, {mask}, {y}, {0, -9}}.run();
  EXPECT_EQ(y.values(), (Values{-9, 0, -9, 0}));
  Call{OpKind::kWhere, {mask}, {y}, {7}}.run();
  EXPECT_EQ(y.values(), (Values{7, 7, 7, 7}));
}

// torch.ones(2, 2, 3).tril()
TEST(Kernels, LowerTriangle) {
  HostTensor x({2, 2, 3}, DType::kBool), y({2, 2, 3}, DType::kBool);
  x.set(Values(12, 1));
  Call{OpKind::kTril, {x}, {y}, {}}.run();
  EXPECT_EQ(y.values(), (Values{1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0}));
}

TEST(Kernels, DropoutKeepsTheExpectedShareAndScales) {
  HostTensor x({10000}), y({10000}), mask({10000}, DType::kBool), gx({10000});
  x.set(Values(10000, 3.0));
  Call{OpKind::kDropout, {x}, {y, mask}, {0.25, 7}}.run();
  double kept = 0;
  const Values m = mask.values(), out = y.values();
  for (std::size_t i = 0; i < m.size(); ++i) {
    kept += m[i];
    EXPECT_FLOAT_EQ(static_cast<float>(out[i]), static_cast<float>(m[i] * 4));
  }
  EXPECT_NEAR(kept / 10000, 0.75, 5 * std::sqrt(0.25 * 0.75 / 10000));  // five standard deviations
  Call{OpKind::kDropoutBackward, {x, mask}, {gx}, {0.25}}.run();
  EXPECT_EQ(gx.values(), out);
}

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

TEST(Kernels, ListsForSharding) {
  // Two parameters [5, 2] and [3] over 2 ranks: rows padded to 6 and 4, so each rank's part is 3 *
  // 2 + 2 = 8 elements.
  HostTensor g1({5, 2}, DType::kBFloat16), g2({3}, DType::kBFloat16), packed({2, 9});
  g1.set({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  g2.set({11, 12, 13});
  Call{OpKind::kChunkCat, {g1, g2}, {packed}, {0}}.run();
  EXPECT_EQ(packed.values(), (Values{1, 2, 3, 4, 5, 6, 11, 12, 0, 7, 8, 9, 10, 0, 0, 13, 0, 0}));
  // ... and the way back into padded parameters.
  HostTensor p1({2, 6}), p2({2, 2});
  Call{OpKind::kSplitCopy, {packed}, {p1, p2}, {}}.run();
  EXPECT_EQ(p1.values(), (Values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0}));
  EXPECT_EQ(p2.values(), (Values{11, 12, 13, 0}));
}

TEST(Kernels, ChunkCatAlongTheLastDimension) {
  HostTensor g({2, 4}), packed({2, 4});
  g.set({1, 2, 3, 4, 5, 6, 7, 8});
  Call{OpKind::kChunkCat, {g}, {packed}, {1}}.run();
  EXPECT_EQ(packed.values(), (Values{1, 2, 5, 6, 3, 4, 7, 8}));
}

TEST(Kernels, FlattenUnflattenCat) {
  HostTensor a({2, 2}, DType::kFloat32, {1, 0}), b({1}), flat({7}), joined({2, 3}), c({2, 1});
  a.set({1, 2, 3, 4});
  b.set({5});
  c.set({8, 9});
  Call{OpKind::kFlatten, {a, b}, {flat}, {}}.run();
  EXPECT_EQ(flat.values(), (Values{1, 2, 3, 4, 5, 0, 0}));
  HostTensor a2({2, 2}), b2({1}, DType::kBFloat16);
  Call{OpKind::kUnflatten, {flat}, {a2, b2}, {}}.run();
  EXPECT_EQ(a2.values(), a.values());
  EXPECT_EQ(b2.values(), b.values());
  Call{OpKind::kCat, {a, c}, {joined}, {-1}}.run();
  EXPECT_EQ(joined.values(), (Values{1, 2, 8, 3, 4, 9}));
}

TEST_P(ByType, LayerNormAndItsGradients) {
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

TEST_P(ByType, RmsNormAndItsGradients) {
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

TEST_P(ByType, SoftmaxAndLogSoftmax) {
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

TEST(Kernels, EmbeddingAndItsGradient) {
  HostTensor weight({4, 3}), index({2, 3}, DType::kInt64), y({2, 3, 3}), grad({2, 3, 3}),
      gw({4, 3});
  weight.wave(0.2);
  index.set({1, 3, 1, 0, 1, 1});
  grad.wave(0.9);
  Call{OpKind::kEmbedding, {weight, index}, {y}, {}}.run();
  const Values w = weight.values(), g = grad.values(), out = y.values();
  const std::size_t rows[] = {1, 3, 1, 0, 1, 1};
  Values expected(12, 0);
  for (std::size_t i = 0; i < 6; ++i) {
    for (std::size_t k = 0; k < 3; ++k) {
      EXPECT_EQ(out[i * 3 + k], w[rows[i] * 3 + k]);
      expected[rows[i] * 3 + k] += g[i * 3 + k];
    }
  }
  Call{OpKind::kEmbeddingBackward, {grad, index}, {gw}, {}}.run();
  expect_near(gw.values(), expected, 1e-6);
  index.set({1, 4, 1, 0, 1, 1});
  EXPECT_THROW((Call{OpKind::kEmbedding, {weight, index}, {y}, {}}.run()), RunError);
}

TEST(Kernels, IndexedCopies) {
  HostTensor x({3, 2}), index({2, 2}, DType::kInt64), y({2, 2}), z({3, 2}),
      rows({2}, DType::kInt64), picked({2, 2}), counts({3}, DType::kInt64);
  x.set({1, 2, 3, 4, 5, 6});
  index.set({2, 0, 1, 2});
  Call{OpKind::kGather, {x, index}, {y}, {0}}.run();
  EXPECT_EQ(y.values(), (Values{5, 2, 3, 6}));
  Call{OpKind::kScatter, {index, y}, {z}, {0, 1}}.run();
  EXPECT_EQ(z.values(), (Values{0, 2, 3, 0, 5, 6}));
  rows.set({2, 2});
  Call{OpKind::kIndexSelect, {x, rows}, {picked}, {0}}.run();
  EXPECT_EQ(picked.values(), (Values{5, 6, 5, 6}));
  Call{OpKind::kIndexAdd, {x, rows, picked}, {x}, {0}}.run();
  EXPECT_EQ(x.values(), (Values{1, 2, 3, 4, 15, 18}));
  Call{OpKind::kHistogram, {index}, {counts}, {}}.run();
  EXPECT_EQ(counts.values(), (Values{1, 1, 2}));
}

TEST(Kernels, OrderedSelections) {
  HostTensor x({2, 4}), values({2, 2}), indices({2, 2}, DType::kInt64), sums({2, 4});
  x.set({3, 1, 3, 2, -1, 5, 0, 4});
  Call{OpKind::kTopK, {x}, {values, indices}, {}}.run();
  EXPECT_EQ(values.values(), (Values{3, 3, 5, 4}));
  EXPECT_EQ(indices.values(), (Values{0, 2, 1, 3}));
  HostTensor sorted({2, 4}), order({2, 4}, DType::kInt64);
  Call{OpKind::kSort, {x}, {sorted, order}, {}}.run();
  EXPECT_EQ(sorted.values(), (Values{1, 2, 3, 3, -1, 0, 4, 5}));
  EXPECT_EQ(order.values(), (Values{1, 3, 0, 2, 0, 2, 3, 1}));
  Call{OpKind::kCumsum, {x}, {sums}, {}}.run();
  EXPECT_EQ(sums.values(), (Values{3, 4, 7, 9, -1, 4, 4, 8}));
}

/// softmax(q kᵀ scale + mask) v by definition, [b, h, s, d] row-major, grouped heads.
struct AttentionReference {
  std::int64_t b, h, kv, s, t, d;
  bool causal;
  Values lse;
  Values operator()(const Values& q, const Values& k, const Values& v) {
    Values out;
    lse.clear();
    for (std::int64_t i = 0; i < b * h * s; ++i) {
      const std::int64_t query = i % s, head = i / s % h, batch = i / s / h;
      const std::int64_t base = (batch * kv + head / (h / kv)) * t;
      Values p(static_cast<std::size_t>(t), 0.0);
      double sum = 0;
      for (std::int64_t j = 0; j < t; ++j) {
        if (causal && j > query + t - s) continue;
        double score = 0;
        for (std::int64_t e = 0; e < d; ++e)
          score += q[static_cast<std::size_t>(i * d + e)] *
                   k[static_cast<std::size_t>((base + j) * d + e)];
        sum += p[static_cast<std::size_t>(j)] = std::exp(score / std::sqrt(static_cast<double>(d)));
      }
      lse.push_back(std::log(sum));
      for (std::int64_t e = 0; e < d; ++e) {
        double o = 0;
        for (std::int64_t j = 0; j < t; ++j)
          o += p[static_cast<std::size_t>(j)] / sum *
               v[static_cast<std::size_t>((base + j) * d + e)];
        out.push_back(o);
      }
    }
    return out;
  }
};

TEST_P(ByType, AttentionAndItsGradients) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t kv : {4, 2, 1}) {
      // Memory order [b, s, h, d], as views of projections have it.
      const std::vector<int> layout{0, 2, 1, 3};
      const std::int64_t b = 2, h = 4, s = 3, t = 5, d = 4;
      HostTensor q({b, h, s, d}, type, layout), k({b, kv, t, d}, type, layout),
          v({b, kv, t, d}, type, layout);
      HostTensor o({b, h, s, d}, type, layout), lse({b, h, s}), go({b, h, s, d}, type, layout);
      q.wave(0.1, 2);
      k.wave(0.7, 2);
      v.wave(1.4);
      go.wave(2.2);
      const double flag = causal ? 1 : 0;
      Call{OpKind::kFlashAttention, {q, k, v}, {o, lse}, {flag}}.run();
      AttentionReference f{b, h, kv, s, t, d, causal, {}};
      const Values qs = q.values(), ks = k.values(), vs = v.values(), g = go.values();
      const Values exact = f(qs, ks, vs);
      expect_near(o.values(), exact, tolerance);
      expect_near(lse.values(), f.lse, 1e-5);
      HostTensor gq({b, h, s, d}, type, layout), gk({b, kv, t, d}, type),
          gv({b, kv, t, d}, type, layout);
      Call{OpKind::kFlashAttentionBackward, {go, q, k, v, o, lse}, {gq, gk, gv}, {flag}}.run();
      // The rounded output enters the row sums: a few roundings.
      const double bound = 4 * tolerance + 1e-5;
      expect_near(gq.values(),
                  gradient_of([&](const Values& x) { return dot(g, f(x, ks, vs)); }, qs), bound,
                  "gq");
      expect_near(gk.values(),
                  gradient_of([&](const Values& x) { return dot(g, f(qs, x, vs)); }, ks), bound,
                  "gk");
      expect_near(gv.values(),
                  gradient_of([&](const Values& x) { return dot(g, f(qs, ks, x)); }, vs), bound,
                  "gv");
    }
  }
}

TEST(Kernels, AttentionMasksAndWindows) {
  // One head, d = 1, q = 0: every visible key has the same weight, so the output is the mean of the
  // visible values.
  HostTensor q({1, 1, 4, 1}), k({1, 1, 4, 1}), v({1, 1, 4, 1}), o({1, 1, 4, 1}),
      mask({4, 4}, DType::kBool);
  q.set({0, 0, 0, 0});
  k.set({1, 2, 3, 4});
  v.set({1, 2, 3, 4});
  Call{OpKind::kFlashAttention, {q, k, v}, {o}, {1, 0, 2}}.run();  // causal, window of 2
  EXPECT_EQ(o.values(), (Values{1, 1.5, 2.5, 3.5}));
  mask.set({1, 0, 0, 1, 0, 1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 0});
  Call{OpKind::kEfficientAttention, {q, k, v, mask}, {o}, {0}}.run();
  EXPECT_EQ(o.values(), (Values{2.5, 2, 2.5, 3}));
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

TEST(Optimizer, AdamWByHand) {
  // torch.optim.AdamW in double precision, three steps, weight decay 0.1.
  const double lr = 0.01, b1 = 0.9, b2 = 0.95, eps = 1e-8, wd = 0.1;
  HostTensor p({3}), g({3}), m({3}), v({3}), step({1});
  p.set({1, -2, 0.5});
  m.set({0, 0, 0});
  v.set({0, 0, 0});
  step.set({0});
  Values ep{1, -2, 0.5}, em{0, 0, 0}, ev{0, 0, 0};
  for (int t = 1; t <= 3; ++t) {
    g.wave(0.3 * t);
    const Values grad = g.values();
    Call{OpKind::kFusedAdamW, {p, g, m, v, step}, {p, m, v, step}, {lr, b1, b2, eps, wd}, t - 1}
        .run();
    for (std::size_t i = 0; i < 3; ++i) {
      ep[i] *= 1 - lr * wd;
      em[i] = b1 * em[i] + (1 - b1) * grad[i];
      ev[i] = b2 * ev[i] + (1 - b2) * grad[i] * grad[i];
      ep[i] -= lr / (1 - std::pow(b1, t)) * em[i] /
               (std::sqrt(ev[i]) / std::sqrt(1 - std::pow(b2, t)) + eps);
    }
    expect_near(p.values(), ep, 1e-6);
    expect_near(m.values(), em, 1e-6);
    EXPECT_EQ(step.values()[0], t);
  }
}

TEST(Optimizer, ForeachPiecesEqualTheFusedUpdate) {
  const double lr = 0.01, b1 = 0.9, b2 = 0.95, eps = 1e-8, wd = 0.1;
  HostTensor p({4}), m({4}), v({4}), p2({4}), m2({4}), v2({4}), g({4}), tmp({4});
  for (HostTensor* t : {&p, &p2}) t->wave(0.5);
  for (HostTensor* t : {&m, &v, &m2, &v2}) t->set({0, 0, 0, 0});
  for (int t = 0; t < 3; ++t) {
    g.wave(1.0 + t);
    Call{OpKind::kAdamWUpdate, {p, g, m, v}, {p, m, v}, {lr, b1, b2, eps, wd}, t}.run();
    Call{OpKind::kForeachMul, {p2}, {p2}, {1 - lr * wd}, t}.run();
    Call{OpKind::kForeachLerp, {m2, g}, {m2}, {1 - b1}, t}.run();
    Call{OpKind::kForeachMul, {v2}, {v2}, {b2}, t}.run();
    Call{OpKind::kForeachAddcmul, {v2, g, g}, {v2}, {1 - b2}, t}.run();
    Call{OpKind::kForeachSqrt, {v2}, {tmp}, {}, t}.run();
    Call{OpKind::kForeachDiv, {tmp}, {tmp}, {0, b2}, t}.run();
    Call{OpKind::kForeachAdd, {tmp}, {tmp}, {eps}, t}.run();
    Call{OpKind::kForeachAddcdiv, {p2, m2, tmp}, {p2}, {0, lr, b1}, t}.run();
    expect_near(p2.values(), p.values(), 1e-6);
    expect_near(v2.values(), v.values(), 1e-6);
  }
}

TEST(Optimizer, SgdWithMomentumAndDecay) {
  HostTensor p({2}), g({2}), buf({2});
  p.set({1, 2});
  buf.set({0, 0});
  g.set({0.5, -1});
  // step 1: grad' = g + 0.1 p = {0.6, -0.8}; buf = grad'; p -= 0.2 buf = {0.88, 2.16}
  Call{OpKind::kSgdUpdate, {p, g, buf}, {p, buf}, {0.2, 0.9, 0.1}, 0}.run();
  expect_near(p.values(), {0.88, 2.16}, 1e-6);
  // step 2: grad' = {0.588, -0.784}; buf = 0.9 buf + grad' = {1.128, -1.504}; p = {0.6544, 2.4608}
  Call{OpKind::kSgdUpdate, {p, g, buf}, {p, buf}, {0.2, 0.9, 0.1}, 1}.run();
  expect_near(p.values(), {0.6544, 2.4608}, 1e-6);
}

TEST(Kernels, UnknownOpIsRefusedByName) {
  try {
    Call{OpKind::kFusedBlock, {}, {}, {}}.run();
    FAIL();
  } catch (const RunError& e) {
    EXPECT_NE(std::string(e.what()).find("fused_block"), std::string::npos);
  }
}

}  // namespace
}  // namespace foreshard::fixture
