// FSDP2 schedules on the CPU executor: valid, and what is only a matter of scheduling changes no
// loss.

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "exec/run.h"
#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"
#include "schedules/validate.h"

namespace foreshard {
namespace {

Model tiny() {
  PlainModelOptions o;
  o.layers = 3;
  o.hidden = 40;
  o.heads = 4;
  o.kv_heads = 2;
  o.ffn = 52;
  o.vocabulary = 61;  // uneven over four ranks
  o.max_sequence = 16;
  return plain_llama(o);
}

std::vector<double> losses(const std::function<void(ParallelConfig&)>& change) {
  ParallelConfig c;
  c.shard = 4;
  c.sequence = 8;
  c.micro_batch = 2;
  c.precision = MixedPrecision{};
  change(c);
  PlanOptions options;
  options.steps = 2;
  const Model model = tiny();
  const Schedule s = plan(model, c, options);
  const auto findings = validate(s);
  EXPECT_TRUE(findings.empty()) << text_of(s, findings.front());
  RunOptions run_options;
  run_options.mode = StreamMode::kInline;
  return run(s, run_options).trace.losses;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-5 * expected[i]);
}

TEST(Fsdp2Execution, OneShardEqualsTheUnshardedModel) {
  expect_near(losses([](ParallelConfig& c) { c.shard = 1; }), losses([](ParallelConfig& c) {
                c.shard = 1;
                c.framework = FrameworkKind::kUnsharded;
              }));
}

TEST(Fsdp2Execution, SchedulingChangesNoLoss) {
  const auto expected = losses([](ParallelConfig&) {});
  expect_near(losses([](ParallelConfig& c) { c.shard = c.replicate = 2; }), expected);
  expect_near(losses([](ParallelConfig& c) { c.reshard = Reshard::to_group(2); }), expected);
  expect_near(losses([](ParallelConfig& c) { c.reshard = Reshard::no(); }), expected);
  expect_near(losses([](ParallelConfig& c) { c.checkpoint = CheckpointKind::kFull; }), expected);
  expect_near(losses([](ParallelConfig& c) { c.unshard_async = true; }), expected);
  expect_near(losses([](ParallelConfig& c) { c.prefetch_forward = c.prefetch_backward = 2; }),
              expected);
  expect_near(losses([](ParallelConfig& c) { c.offload = OffloadKind::kParameters; }), expected);
}

TEST(Fsdp2Execution, AccumulationWithoutSyncEqualsWithSync) {
  const auto accumulate = [](bool sync) {
    return losses([sync](ParallelConfig& c) {
      c.accumulate = 2;
      c.sync_each_micro_batch = sync;
    });
  };
  expect_near(accumulate(false), accumulate(true));
}

}  // namespace
}  // namespace foreshard
