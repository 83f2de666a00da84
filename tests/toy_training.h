#pragma once

// Small models that train on the CPU in milliseconds, and what they learn: what tests of frameworks
// compare.

#include <gtest/gtest.h>

#include <cstdint>
#include <algorithm>
#include <vector>

#include "exec/run.h"
#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"
#include "schedules/validate.h"

namespace foreshard {

/// Sizes that do not divide by four ranks.
inline PlainModelOptions uneven_sizes(std::int64_t layers) {
  PlainModelOptions o;
  o.layers = layers;
  o.hidden = 40;
  o.heads = 4;
  o.kv_heads = 2;
  o.ffn = 52;
  o.vocabulary = 61;
  o.max_sequence = 16;
  return o;
}

/// Four ranks in fp32, whatever the framework.
inline ParallelConfig toy_config(FrameworkKind framework) {
  ParallelConfig c;
  c.framework = framework;
  (framework == FrameworkKind::kDdp ? c.replicate : c.shard) = 4;
  c.sequence = 8;
  c.micro_batch = 2;
  c.precision = MixedPrecision{};
  return c;
}

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
                        double relative, const char* what = "value") {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], relative * std::max(1e-6, expected[i]))
        << what << " of step " << i;
  }
}

}  // namespace foreshard
