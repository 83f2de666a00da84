#include "study/ways_to_fit.h"

#include <fmt/format.h>

#include <vector>

#include "schedules/planner/framework_table.h"
#include "study/evaluate.h"
#include "study/job_change.h"
#include "study/suggest.h"

namespace foreshard {
namespace {

std::string sharding(const Job& job) {
  const FrameworkRow& framework = row_of(job.config.framework);
  if (framework.whole_copies() || framework.ranks == RankLayout::kOneDevice)
    return "--framework fsdp2 on several GPUs";
  if (job.config.framework == FrameworkKind::kFsdp2 && padded_share(plan_of(job)) > kMuchPadding)
    return "--framework fsdp1 (few rows are padded to the shard group)";
  return "more GPUs";
}

}  // namespace

std::string ways_to_fit(const Job& job) {
  const ParallelConfig& c = job.config;
  std::vector<std::string> ways{sharding(job)};
  if (c.checkpoint != CheckpointKind::kFull && !job.model->roles.blocks.empty())
    ways.push_back("--checkpoint full");
  if (c.micro_batch > 1) ways.push_back("a smaller --micro-batch");
  if (c.offload == OffloadKind::kNone)
    for (const OffloadKind kind : {OffloadKind::kParameters, OffloadKind::kOptimizer})
      if (row_of(c.framework).can_offload(kind)) {
        ways.push_back(change::offload(kind).options);
        break;
      }
  std::string out = ways[0];
  for (std::size_t i = 1; i < ways.size(); ++i)
    out += (i + 1 == ways.size() ? " or " : ", ") + ways[i];
  return out;
}

}  // namespace foreshard
