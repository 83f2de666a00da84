#pragma once

// Factors on numbers of the cost model that explain measured step times best, near their priors.

#include <span>
#include <vector>

namespace foreshard {

/// One factor to fit, 1 before any row is seen.
struct FactorPrior {
  double sd = 0;   ///< Of its logarithm.
  int sense = -1;  ///< How step time depends on it: -1 for rates (time as 1 / factor), 1 for costs.
};

/// How a step's time moves with the factors: near the priors
///   T(factors) = step_s + sum_i parts_s[i] * (exp(sense_i * log_factor_i) - 1),
/// exact where kernels do not overlap with anything else.
struct StepModel {
  double step_s = 0;
  std::vector<double> parts_s;

  /// `factors`: their logarithms.
  double at(std::span<const FactorPrior> priors, std::span<const double> factors) const;
};

/// Relative change of a number when its part of a step is measured.
inline constexpr double kFactorProbe = 0.05;

struct FactorRow {
  const StepModel* model = nullptr;
  double measured_s = 0;
  double weight = 0;  ///< 1 / variance of log(predicted / measured) at the true factors.
};

struct FactorFit {
  std::vector<double> factors;  ///< Logarithms.
  std::vector<double> sd;       ///< Of the logarithms, given priors and rows.
};

/// Gauss-Newton on log(predicted / measured) with Huber's loss from 8 %, every factor held by its
/// prior.
FactorFit fit_factors(std::span<const FactorPrior> priors, std::span<const FactorRow> rows);

}  // namespace foreshard
