// The flow of plan, run, simulate and compare for every row of the framework table, with everything
// that it can offload: the simulation, which plans for itself and folds equal ranks, and the
// execution of every rank's own program agree on order, bytes and peaks. Neither side is told what
// to expect.

#include <gtest/gtest.h>

#include <memory>

#include "exec/run.h"
#include "hwprofiles/profile.h"
#include "report/compare.h"
#include "report/trace_document.h"
#include "schedules/planner/framework_table.h"
#include "study/evaluate.h"
#include "tests/toy_training.h"

namespace foreshard {
namespace {

Job toy_job(const FrameworkRow& row) {
  Job job;
  PlainModelOptions sizes = uneven_sizes(2);
  sizes.heads = 5;  // Heads of 8: the executor has fused attention only, others plan products.
  sizes.kv_heads = 1;
  job.model = std::make_shared<const Model>(plain_llama(sizes));
  job.config = toy_config(row.kind);
  if (row.ranks == RankLayout::kOneDevice) job.config.shard = 1;
  job.config.precision.param = DType::kBFloat16;
  if (row.precision == PrecisionRule::kParameters) job.config.precision = MixedPrecision{};
  job.config.accumulate = 2;
  job.config.zero.reduce_bucket_size = 5'000;
  job.config.zero.param_persistence_threshold = 0;
  job.hardware = load_hardware("dgx-h100");
  job.gpus = job.config.world();
  return job;
}

void expect_agreement(const Job& job) {
  PlanOptions options;
  options.steps = steady_steps(job.config);
  const Schedule schedule = plan(*job.model, job.config, options);
  RunOptions run_options;
  run_options.mode = StreamMode::kInline;
  const TraceDocument measured = make_trace_document(schedule, run(schedule, run_options).trace);
  SimulationOptions simulation;
  simulation.detail = Detail::kTrace;
  simulation.steps = static_cast<std::int32_t>(options.steps);
  const Evaluation e = evaluate(job, simulation);
  const Comparison c = compare(make_trace_document(e.schedule, *e.result.trace), measured);
  const std::string where = c.differences.empty() ? "" : c.differences.front().what;
  EXPECT_TRUE(c.order_equal) << where;
  EXPECT_TRUE(c.bytes_equal) << where;
  EXPECT_EQ(c.peak_difference(), Bytes(0));
  EXPECT_EQ(c.ranks, schedule.world);
  EXPECT_GT(c.instructions, 50);
}

TEST(EveryFramework, SimulationAndExecutionAgreeOnEveryRank) {
  for (const FrameworkRow& row : frameworks()) {
    SCOPED_TRACE(std::string(row.name));
    Job job = toy_job(row);
    expect_agreement(job);
    for (const OffloadKind kind : row.offloads) {
      SCOPED_TRACE("offload " + std::to_string(static_cast<int>(kind)));
      job.config.offload = kind;
      expect_agreement(job);
    }
  }
}

}  // namespace
}  // namespace foreshard
