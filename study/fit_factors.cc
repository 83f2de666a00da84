#include "study/fit_factors.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace foreshard {
namespace {

constexpr double kHuber = 0.08;  ///< Residuals beyond count linearly.
constexpr int kIterations = 30;

/// Solves A x = b in place for a small symmetric positive definite A; also returns the diagonal of
/// its inverse.
struct Solution {
  std::vector<double> x, inverse_diagonal;
};

Solution solve(std::vector<std::vector<double>> a, std::vector<double> b) {
  const std::size_t n = b.size();
  std::vector<std::vector<double>> inverse(n, std::vector<double>(n, 0.0));
  for (std::size_t i = 0; i < n; ++i) inverse[i][i] = 1;
  for (std::size_t i = 0; i < n; ++i) {
    const double pivot = a[i][i];
    for (std::size_t j = 0; j < n; ++j) {
      a[i][j] /= pivot;
      inverse[i][j] /= pivot;
    }
    b[i] /= pivot;
    for (std::size_t k = 0; k < n; ++k) {
      if (k == i) continue;
      const double f = a[k][i];
      for (std::size_t j = 0; j < n; ++j) {
        a[k][j] -= f * a[i][j];
        inverse[k][j] -= f * inverse[i][j];
      }
      b[k] -= f * b[i];
    }
  }
  Solution s;
  s.x = std::move(b);
  for (std::size_t i = 0; i < n; ++i) s.inverse_diagonal.push_back(inverse[i][i]);
  return s;
}

}  // namespace

double StepModel::at(std::span<const FactorPrior> priors, std::span<const double> factors) const {
  double t = step_s;
  for (std::size_t i = 0; i < priors.size(); ++i)
    t += parts_s[i] * (std::exp(priors[i].sense * factors[i]) - 1);
  return t;
}

FactorFit fit_factors(std::span<const FactorPrior> priors, std::span<const FactorRow> rows) {
  const std::size_t n = priors.size();
  FactorFit fit{std::vector<double>(n, 0.0), std::vector<double>(n, 0.0)};
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    std::vector<std::vector<double>> a(n, std::vector<double>(n, 0.0));
    std::vector<double> b(n, 0.0);
    for (std::size_t i = 0; i < n; ++i) {
      a[i][i] = 1 / (priors[i].sd * priors[i].sd);
      b[i] = -fit.factors[i] * a[i][i];
    }
    for (const FactorRow& row : rows) {
      const double t = row.model->at(priors, fit.factors), r = std::log(t / row.measured_s);
      const double w = row.weight * std::min(1.0, kHuber / std::max(std::fabs(r), 1e-9));
      std::vector<double> slope(n);
      for (std::size_t i = 0; i < n; ++i) {
        slope[i] = row.model->parts_s[i] * priors[i].sense *
                   std::exp(priors[i].sense * fit.factors[i]) / t;
      }
      for (std::size_t i = 0; i < n; ++i) {
        b[i] -= w * slope[i] * r;
        for (std::size_t j = 0; j < n; ++j) a[i][j] += w * slope[i] * slope[j];
      }
    }
    const Solution s = solve(std::move(a), std::move(b));
    double moved = 0;
    for (std::size_t i = 0; i < n; ++i) {
      fit.factors[i] += s.x[i];
      fit.sd[i] = std::sqrt(s.inverse_diagonal[i]);
      moved = std::max(moved, std::fabs(s.x[i]));
    }
    if (moved < 1e-9) break;
  }
  return fit;
}

}  // namespace foreshard
