#pragma once

// A job as planned, on CPU ranks: what its training reports.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "exec/run.h"
#include "models/module_tree.h"
#include "schedules/planner/planner.h"
#include "schedules/validate.h"

namespace foreshard::testing {

/// Losses and gradient norms of so many steps. A schedule with findings fails the test.
inline Trace trained(const Model& model, const ParallelConfig& config, std::int64_t steps = 3,
                     StreamMode mode = StreamMode::kInline) {
  PlanOptions options;
  options.steps = steps;
  const Schedule s = plan(model, config, options);
  const auto findings = validate(s);
  EXPECT_TRUE(findings.empty()) << text_of(s, findings.front());
  RunOptions run_options;
  run_options.mode = mode;
  run_options.record_spans = false;
  return run(s, run_options).trace;
}

/// Equal values but for a share of the expected ones.
inline void expect_near(const std::vector<double>& found, const std::vector<double>& expected,
                        double tolerance, const char* what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], tolerance * std::max(1e-6, expected[i]))
        << what << " of step " << i;
  }
}

}  // namespace foreshard::testing
