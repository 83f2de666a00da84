// Optimizers against their definition in double precision.

#include <cmath>

#include <gtest/gtest.h>

#include "tests/exec/host_tensor.h"

namespace foreshard::fixture {
namespace {

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

}  // namespace
}  // namespace foreshard::fixture
