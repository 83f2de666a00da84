#pragma once

#include <string>

#include "report/plan_difference.h"
#include "study/evaluate.h"

namespace foreshard::cli {

/// A plan with its prediction, ready to be compared.
struct ComparedPlan {
  std::string title, subject;
  Evaluation evaluation;
};

/// What report/ shows of two plans: one step of rank 0, time by parts, memory by owners at the
/// peak.
PlanDifference difference_of(const ComparedPlan& a, const ComparedPlan& b);

}  // namespace foreshard::cli
