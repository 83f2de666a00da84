// What a plan says of a job that PyTorch accepts and does not train as it reads (recorded: the
// copies of a hybrid job with shard groups of one rank drift apart).

#include <gtest/gtest.h>

#include "models/load_model.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

std::vector<std::string> remarks_on(ParallelConfig c) {
  c.framework = FrameworkKind::kFsdp1;
  c.sequence = 16;
  PlanOptions options;
  options.executable = false;
  return plan(load_model("llama-tiny"), c, options).remarks;
}

TEST(Remarks, CopiesThatAreNeverReduced) {
  ParallelConfig c;
  c.shard = 2;
  c.replicate = 2;
  c.fsdp1.strategy = Fsdp1Options::Strategy::kHybrid;
  EXPECT_TRUE(remarks_on(c).empty());
  c.shard = 1;
  c.replicate = 4;
  ASSERT_EQ(remarks_on(c).size(), 1u);
  EXPECT_NE(remarks_on(c)[0].find("never reduces"), std::string::npos);
}

TEST(Remarks, OffloadedGradientsOfSeveralMicroBatches) {
  ParallelConfig c;
  c.shard = 4;
  c.accumulate = 2;
  EXPECT_TRUE(remarks_on(c).empty());
  c.offload = OffloadKind::kParameters;
  ASSERT_EQ(remarks_on(c).size(), 1u);
  EXPECT_NE(remarks_on(c)[0].find("outside no_sync()"), std::string::npos);
  c.sync_each_micro_batch = false;
  EXPECT_TRUE(remarks_on(c).empty());
}

}  // namespace
}  // namespace foreshard
