#include "study/reference.h"

#include "core/error.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/planner.h"
#include "schedules/structure.h"

namespace foreshard {
namespace {

/// What a CPU trains in seconds.
constexpr std::int64_t kMostParameters = 100'000'000;

/// Whole copies compute in the parameters' dtype, whatever the precision of sharding frameworks
/// says.
bool computes_in_own_dtype(const ParallelConfig& c) {
  if (row_of(c.framework).ranks == RankLayout::kCopies) return !c.ddp.mixed_precision;
  return c.precision.param.value_or(c.model_dtype) == c.model_dtype;
}

ParallelConfig on_one_rank(const ParallelConfig& c) {
  ParallelConfig one = c;
  one.micro_batch = c.micro_batch * c.world();
  one.shard = one.replicate = 1;
  one.offload = OffloadKind::kNone;
  one.reshard = one.root_reshard = {};
  for (WrapCall& call : one.calls) call.reshard = {};
  if (!computes_in_own_dtype(c)) return one;
  one.framework = FrameworkKind::kUnsharded;
  one.checkpoint_reentrant = one.checkpoint_outside_units = false;
  // DeepSpeed divides each loss by the number of micro-batches.
  one.average_micro_batches = c.average_micro_batches || row_of(c.framework).deepspeed;
  return one;
}

}  // namespace

std::optional<Schedule> reference_plan(const Job& job, std::int64_t steps) {
  const std::int64_t world = job.config.world();
  if (world < 2 || world > kMostExecutedRanks ||
      job.model->parameter_count().value > kMostParameters)
    return std::nullopt;
  PlanOptions options;
  options.steps = steps;
  try {
    return plan(*job.model, on_one_rank(job.config), options);
  } catch (const InputError&) {
    return std::nullopt;  // The framework refuses one rank.
  }
}

}  // namespace foreshard
