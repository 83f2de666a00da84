// Conversions and element-wise kernels against plain double-precision references; gradients against
// central differences of those references.

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/exec/by_type.h"

namespace foreshard::fixture {
namespace {

class Elementwise : public ByType {};
INSTANTIATE_TEST_SUITE_P(Types, Elementwise, kFloatingTypes, type_name);

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

TEST_P(Elementwise, BinaryOpsBroadcast) {
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

TEST_P(Elementwise, InPlaceOpsAcceptTheirOutputAsInput) {
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

TEST_P(Elementwise, ActivationsAndTheirGradients) {
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
