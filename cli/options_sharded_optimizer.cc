#include <fmt/format.h>

#include "cli/framework_options.h"
#include "schedules/planner/framework_table.h"

namespace foreshard::cli {
namespace {

void check(Arguments& a, ParallelConfig& c) {
  const ShardedOptimizerOptions& o = c.sharded_optimizer;
  if (c.framework != FrameworkKind::kShardedOptimizer) return;
  const DType reduced = row_of(c.framework).reduction_dtype(c);
  if (a.has("reduce-dtype") && c.precision.reduce != reduced)
    a.report("reduce-dtype", fmt::format("gradients are reduced in {}", name_of(reduced)),
             "--sharded-float32-sums yes reduces in fp32, no in --param-dtype");
  if (o.reduce_scatter && !o.one_collective_per_tensor)
    a.report("sharded-reduce-scatter", "scatters tensor by tensor",
             "also --sharded-per-tensor yes");
  if (o.reduce_after_backward && !o.accumulate_in_float32)
    a.report("sharded-reduce-after-backward", "reduces fp32 sums",
             "also --sharded-float32-sums yes");
}

}  // namespace

FrameworkOptions sharded_optimizer_options() {
  using O = ShardedOptimizerOptions;
  const OptionMaker<O> make(&ParallelConfig::sharded_optimizer, {FrameworkKind::kShardedOptimizer});
  return {
      .title = "Sharded optimizer (ZeRO-1 as trainers write it themselves)",
      .options =
          {make.number("sharded-bucket-mb", "MIB", "Gradients reduced together (default 25)",
                       &O::bucket_mib, 1e-3, 1e6),
           make.yes_no("sharded-float32-sums", "Gradients summed and reduced in fp32 (default no)",
                       &O::accumulate_in_float32),
           make.yes_no("sharded-per-tensor",
                       "One collective a tensor instead of a flat bucket (default no)",
                       &O::one_collective_per_tensor),
           make.yes_no("sharded-reduce-scatter",
                       "Reduce-scatter instead of all-reduce (default no)", &O::reduce_scatter),
           make.yes_no("sharded-owners-broadcast",
                       "Owners broadcast whole tensors instead of a gather (default no)",
                       &O::owners_broadcast),
           make.yes_no("sharded-reduce-after-backward",
                       "One all-reduce of the fp32 sums after backward (default no)",
                       &O::reduce_after_backward),
           make.yes_no("sharded-gather-lists",
                       "Gather through flat lists and their copies (default no)", &O::gather_lists),
           make.yes_no("sharded-one-queue",
                       "CUDA_DEVICE_MAX_CONNECTIONS=1: kernels start in the order of their "
                       "launch (default no)",
                       &O::one_hardware_queue)},
      .finish = check};
}

}  // namespace foreshard::cli
