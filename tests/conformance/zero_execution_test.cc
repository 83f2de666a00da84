// ZeRO schedules on the CPU executor: valid, and sharding changes no loss beyond rounding.

#include <gtest/gtest.h>

#include <vector>

#include "exec/run.h"
#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"
#include "schedules/validate.h"

namespace foreshard {
namespace {

Model tiny() {
  PlainModelOptions o;
  o.layers = 2;
  o.hidden = 40;
  o.heads = 4;
  o.kv_heads = 2;
  o.ffn = 52;
  o.vocabulary = 61;   // Uneven over four ranks.
  o.max_sequence = 16;
  return plain_llama(o);
}

std::vector<double> losses(FrameworkKind framework) {
  ParallelConfig c;
  c.framework = framework;
  (framework == FrameworkKind::kDdp ? c.replicate : c.shard) = 4;
  c.sequence = 8;
  c.micro_batch = 2;
  c.precision = MixedPrecision{};
  c.zero.reduce_bucket_size = 3000;
  c.zero.prefetch_bucket_size = 2000;
  c.zero.param_persistence_threshold = 100;
  c.zero.max_reuse_distance = 0;
  PlanOptions options;
  options.steps = 3;
  const Schedule s = plan(tiny(), c, options);
  const auto findings = validate(s);
  EXPECT_TRUE(findings.empty()) << text_of(s, findings.front());
  RunOptions run_options;
  run_options.mode = StreamMode::kInline;
  return run(s, run_options).trace.losses;
}

/// ZeRO trains as data parallelism does: the same averages of gradients, the same clipping and optimizer, in fp32.
void expect_as_ddp(FrameworkKind framework) {
  const std::vector<double> expected = losses(FrameworkKind::kDdp), found = losses(framework);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4 * expected[i]) << "step " << i;
}

TEST(ZeroExecution, StageOneTrainsAsDdp) { expect_as_ddp(FrameworkKind::kZero1); }
TEST(ZeroExecution, StageTwoTrainsAsDdp) { expect_as_ddp(FrameworkKind::kZero2); }
TEST(ZeroExecution, StageThreeTrainsAsDdp) { expect_as_ddp(FrameworkKind::kZero3); }

}  // namespace
}  // namespace foreshard
