#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "exec/kernels/gemm.h"
#include "exec/kernels/kernel_functions.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/rows.h"

// Softmax attention over [b, h, s, d] views of any strides, one (batch, head) at a time with the
// whole s x t score matrix: a reference, not a fast kernel. The backward pass recomputes the
// probabilities from logsumexp.

namespace foreshard::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Problem {
  Problem(const KernelCall& c, const TensorView& q, const TensorView& k, const TensorView& v,
          std::size_t mask_input)
      : batch(q.shape[0]),
        heads(q.shape[1]),
        kv_heads(k.shape[1]),
        queries(q.shape[2]),
        keys(k.shape[2]),
        width(q.shape[3]),
        value_width(v.shape[3]),
        causal(c.attribute(0, 0) != 0),
        window(integer_attribute(c, 2, 0)) {
    if (q.rank != 4 || k.rank != 4 || v.rank != 4 || kv_heads == 0 || heads % kv_heads != 0 ||
        k.shape[3] != width) {
      kernel_error(
          fmt::format("q {}, k {}, v {} do not fit", shape_text(q), shape_text(k), shape_text(v)));
    }
    const double given = c.attribute(1, 0);
    scale = static_cast<float>(given != 0 ? given : 1.0 / std::sqrt(static_cast<double>(width)));
    if (c.has_input(mask_input)) {
      mask = c.inputs[mask_input];
      mask = broadcast_to(mask, 4, {batch, heads, queries, keys, 0});
    }
  }

  std::int64_t batch, heads, kv_heads, queries, keys, width, value_width;
  bool causal;
  std::int64_t window;
  float scale = 1;
  TensorView mask;

  std::int64_t kv_head(std::int64_t head) const { return head / (heads / kv_heads); }
  std::size_t score_count() const { return static_cast<std::size_t>(queries * keys); }

  /// Scaled and masked scores of one head.
  std::vector<float> scores(const std::vector<float>& q, const std::vector<float>& k,
                            std::int64_t b, std::int64_t h) const {
    std::vector<float> s(score_count());
    gemm({.transpose_b = true, .m = queries, .n = keys, .k = width, .alpha = scale}, q.data(),
         k.data(), s.data());
    apply_mask(s, b, h);
    return s;
  }

 private:
  void apply_mask(std::vector<float>& s, std::int64_t b, std::int64_t h) const {
    const std::vector<float> m = mask.present ? to_floats(mask.at(b).at(h)) : std::vector<float>();
    const bool boolean = mask.present && !is_floating(mask.dtype);
    for (std::int64_t i = 0; i < queries; ++i) {
      const std::int64_t last = causal ? i + keys - queries : keys - 1;
      for (std::int64_t j = 0; j < keys; ++j) {
        const auto at = static_cast<std::size_t>(i * keys + j);
        if (mask.present) s[at] = boolean ? (m[at] != 0 ? s[at] : kMinusInfinity) : s[at] + m[at];
        if (j > last || (window > 0 && j <= last - window)) s[at] = kMinusInfinity;
      }
    }
  }
};

/// Turns scores into probabilities in place; returns log Σ exp of each row.
std::vector<float> softmax_rows(std::vector<float>& s, std::int64_t rows, std::int64_t n) {
  std::vector<float> lse(static_cast<std::size_t>(rows));
  for (std::int64_t r = 0; r < rows; ++r) {
    float* v = s.data() + r * n;
    const float top = n > 0 ? *std::max_element(v, v + n) : kMinusInfinity;
    double sum = 0;
    for (std::int64_t i = 0; i < n && top != kMinusInfinity; ++i)
      sum += std::exp(static_cast<double>(v[i] - top));
    for (std::int64_t i = 0; i < n; ++i) {
      v[i] = sum > 0 ? static_cast<float>(std::exp(static_cast<double>(v[i] - top)) / sum) : 0.0f;
    }
    lse[static_cast<std::size_t>(r)] =
        sum > 0 ? top + static_cast<float>(std::log(sum)) : kMinusInfinity;
  }
  return lse;
}

/// Adds `values` to head `h` of a gradient kept in fp32 as [heads][elements].
void add_to_head(std::vector<std::vector<float>>& sums, std::int64_t h,
                 const std::vector<float>& values) {
  std::vector<float>& sum = sums[static_cast<std::size_t>(h)];
  if (sum.empty()) sum.assign(values.size(), 0.0f);
  for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
}

}  // namespace

void attention(const KernelCall& c) {
  const TensorView &q = input(c, 0), &k = input(c, 1), &v = input(c, 2), &o = output(c, 0);
  const Problem p(c, q, k, v, 3);
  std::vector<float> out(static_cast<std::size_t>(p.queries * p.value_width));
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const std::int64_t kv = p.kv_head(h);
      std::vector<float> s = p.scores(to_floats(q.at(b).at(h)), to_floats(k.at(b).at(kv)), b, h);
      const std::vector<float> lse = softmax_rows(s, p.queries, p.keys);
      const std::vector<float> values = to_floats(v.at(b).at(kv));
      gemm({.m = p.queries, .n = p.value_width, .k = p.keys}, s.data(), values.data(), out.data());
      from_floats(o.at(b).at(h), out.data());
      if (!c.has_output(1)) continue;
      TensorView statistics = c.outputs[1].at(b).at(h);
      statistics.shape[0] = p.queries;  // efficient attention pads the rows
      from_floats(statistics, lse.data());
    }
  }
}

/// exp(S - lse), row by row, in place; zero in rows that see no key.
void to_probabilities(const Problem& p, std::vector<float>& s, const std::vector<float>& lse) {
  for (std::int64_t i = 0; i < p.queries; ++i) {
    const float l = lse[static_cast<std::size_t>(i)];
    for (std::int64_t j = 0; j < p.keys; ++j) {
      float& value = s[static_cast<std::size_t>(i * p.keys + j)];
      value = l == kMinusInfinity ? 0.0f : std::exp(value - l);
    }
  }
}

/// P (dP - rowsum(dO O)) in place of P.
void through_softmax(const Problem& p, std::vector<float>& s, const std::vector<float>& gp,
                     const std::vector<float>& gos, const std::vector<float>& os) {
  for (std::int64_t i = 0; i < p.queries; ++i) {
    double dot = 0;
    for (std::int64_t d = 0; d < p.value_width; ++d) {
      const auto at = static_cast<std::size_t>(i * p.value_width + d);
      dot += static_cast<double>(gos[at]) * static_cast<double>(os[at]);
    }
    for (std::int64_t j = 0; j < p.keys; ++j) {
      const auto at = static_cast<std::size_t>(i * p.keys + j);
      s[at] *= gp[at] - static_cast<float>(dot);
    }
  }
}

// P = exp(S - lse); dV = Pᵀ dO; dP = dO Vᵀ; dS = P (dP - rowsum(dO O)) scale; dQ = dS K; dK = dSᵀ Q
// (FlashAttention-2).
void attention_backward(const KernelCall& c) {
  const TensorView &go = input(c, 0), &q = input(c, 1), &k = input(c, 2), &v = input(c, 3),
                   &o = input(c, 4);
  const TensorView &lse_view = input(c, 5), &gq = output(c, 0), &gk = output(c, 1),
                   &gv = output(c, 2);
  const Problem p(c, q, k, v, 6);
  const bool per_head = gk.shape[1] == p.heads && p.heads != p.kv_heads;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    std::vector<std::vector<float>> gk_sums(static_cast<std::size_t>(gk.shape[1])),
        gv_sums(gk_sums.size());
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const std::int64_t kv = p.kv_head(h), target = per_head ? h : kv;
      const std::vector<float> qs = to_floats(q.at(b).at(h)), ks = to_floats(k.at(b).at(kv)),
                               vs = to_floats(v.at(b).at(kv));
      const std::vector<float> gos = to_floats(go.at(b).at(h)), os = to_floats(o.at(b).at(h));
      TensorView statistics = lse_view.at(b).at(h);
      statistics.shape[0] = p.queries;
      const std::vector<float> lse = to_floats(statistics);
      std::vector<float> s = p.scores(qs, ks, b, h), gp(p.score_count());
      to_probabilities(p, s, lse);
      std::vector<float> gvs(vs.size()), gks(ks.size()), gqs(qs.size());
      gemm({.transpose_a = true, .m = p.keys, .n = p.value_width, .k = p.queries}, s.data(),
           gos.data(), gvs.data());
      gemm({.transpose_b = true, .m = p.queries, .n = p.keys, .k = p.value_width}, gos.data(),
           vs.data(), gp.data());
      through_softmax(p, s, gp, gos, os);
      if (c.has_output(3)) from_floats(c.outputs[3].at(b).at(h), s.data());
      gemm({.m = p.queries, .n = p.width, .k = p.keys, .alpha = p.scale}, s.data(), ks.data(),
           gqs.data());
      gemm({.transpose_a = true, .m = p.keys, .n = p.width, .k = p.queries, .alpha = p.scale},
           s.data(), qs.data(), gks.data());
      from_floats(gq.at(b).at(h), gqs.data());
      add_to_head(gk_sums, target, gks);
      add_to_head(gv_sums, target, gvs);
    }
    for (std::size_t h = 0; h < gk_sums.size(); ++h) {
      from_floats(gk.at(b).at(static_cast<std::int64_t>(h)), gk_sums[h].data());
      from_floats(gv.at(b).at(static_cast<std::int64_t>(h)), gv_sums[h].data());
    }
  }
}

}  // namespace foreshard::kernels
