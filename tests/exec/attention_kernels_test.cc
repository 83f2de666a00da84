// Attention against plain double-precision references; gradients against central differences of
// those references.

#include <cmath>

#include <gtest/gtest.h>

#include "tests/exec/by_type.h"

namespace foreshard::fixture {
namespace {

class AttentionKernels : public ByType {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionKernels, kFloatingTypes, type_name);

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

TEST_P(AttentionKernels, AttentionAndItsGradients) {
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

}  // namespace
}  // namespace foreshard::fixture
