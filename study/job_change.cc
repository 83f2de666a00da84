#include "study/job_change.h"

#include <fmt/format.h>

#include "core/text.h"
#include "models/adapters.h"
#include "schedules/planner/config_names.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/wrap_policy.h"

namespace foreshard {
namespace {

using Strategy = Fsdp1Options::Strategy;

template <typename Apply>
JobChange to_config(std::string options, Apply apply) {
  return {std::move(options), [apply](Job& job) { apply(job.config); }, true};
}

Strategy strategy(bool copies, bool reshards) {
  if (copies) return reshards ? Strategy::kHybrid : Strategy::kHybridZero2;
  return reshards ? Strategy::kFullShard : Strategy::kShardGradOp;
}

JobChange with_strategy(Strategy s) {
  return to_config(fmt::format("--fsdp1-strategy {}", name_in(kStrategyNames, s)),
                   [s](ParallelConfig& c) { c.fsdp1.strategy = s; });
}

}  // namespace

bool keeps_gathered(Fsdp1Options::Strategy s) {
  return s == Strategy::kShardGradOp || s == Strategy::kHybridZero2;
}

JobChange JobChange::operator+(const JobChange& next) const {
  if (empty()) return next;
  if (next.empty()) return *this;
  return {options + " " + next.options,
          [first = apply, second = next.apply](Job& job) {
            first(job);
            second(job);
          },
          replans || next.replans};
}

namespace change {

JobChange micro_batch(std::int64_t n) {
  return to_config(fmt::format("--micro-batch {}", n),
                   [n](ParallelConfig& c) { c.micro_batch = n; });
}

JobChange no_checkpoint() {
  return to_config("--checkpoint none",
                   [](ParallelConfig& c) { c.checkpoint = CheckpointKind::kNone; });
}

JobChange full_checkpoint() {
  return to_config("--checkpoint full",
                   [](ParallelConfig& c) { c.checkpoint = CheckpointKind::kFull; });
}

JobChange checkpoint_every(std::int64_t blocks) {
  return to_config(fmt::format("--checkpoint every:{}", blocks), [blocks](ParallelConfig& c) {
    c.checkpoint = CheckpointKind::kEveryK;
    c.checkpoint_every = blocks;
  });
}

JobChange selective_checkpoint() {
  return to_config("--checkpoint selective",
                   [](ParallelConfig& c) { c.checkpoint = CheckpointKind::kSelectiveOp; });
}

JobChange loss(LossKind kind) {
  return to_config(fmt::format("--loss {}", name_in(kLossNames, kind)),
                   [kind](ParallelConfig& c) { c.loss = kind; });
}

JobChange optimizer(OptimizerKind kind) {
  return to_config(fmt::format("--optimizer {}", name_in(kOptimizerNames, kind)),
                   [kind](ParallelConfig& c) { c.optimizer = kind; });
}

JobChange offload(OffloadKind kind) {
  return to_config(fmt::format("--offload {}", name_in(kOffloadNames, kind)),
                   [kind](ParallelConfig& c) { c.offload = kind; });
}

JobChange sync_each_micro_batch(bool on) {
  return to_config(fmt::format("--sync-each-micro-batch {}", yes_no(on)),
                   [on](ParallelConfig& c) { c.sync_each_micro_batch = on; });
}

JobChange prefetch_backward(std::int64_t units) {
  return to_config(fmt::format("--prefetch-backward {}", units),
                   [units](ParallelConfig& c) { c.prefetch_backward = units; });
}

JobChange secondary_partition(std::int64_t ranks) {
  return to_config(fmt::format("--zero-hpz-partition-size {}", ranks),
                   [ranks](ParallelConfig& c) { c.zero.hpz_partition_size = ranks; });
}

JobChange quantised_weights() {
  return to_config("--zero-quantized-weights yes",
                   [](ParallelConfig& c) { c.zero.quantised_weights = true; });
}

JobChange reduce_dtype(DType dtype) {
  return to_config(fmt::format("--reduce-dtype {}", short_dtype(dtype)),
                   [dtype](ParallelConfig& c) { c.precision.reduce = dtype; });
}

JobChange model_dtype(const Job& job, DType dtype) {
  const bool own = row_of(job.config.framework).precision == PrecisionRule::kParameters;
  JobChange out{fmt::format("--model-dtype {}", short_dtype(dtype)), [dtype, own](Job& changed) {
                  changed.config.model_dtype = dtype;
                  Model model = *changed.model;
                  model.set_dtype(dtype);
                  changed.model = std::make_shared<const Model>(std::move(model));
                  if (!own) return;
                  changed.config.precision.param = changed.config.precision.reduce = dtype;
                  changed.config.autocast = false;
                }};
  // Compute in the parameters' dtype, whatever was asked for fp32 ones.
  if (own) out.options += fmt::format(" --param-dtype {}", short_dtype(dtype));
  return out;
}

JobChange adapters(const Job& job) {
  LoraOptions lora;
  lora.rank = 16;
  return {fmt::format("--lora-rank {}", lora.rank),
          [lora, sixteen_bits = model_dtype(job, DType::kBFloat16)](Job& changed) {
            changed.model = std::make_shared<const Model>(with_lora(*changed.model, lora));
            sixteen_bits.apply(changed);
          }};
}

JobChange four_bit_base() {
  return {"--lora-base 4bit", [](Job& changed) {
            changed.model = std::make_shared<const Model>(with_4bit_base(*changed.model));
          }};
}

JobChange expandable_segments() {
  return {"--alloc-conf expandable_segments:True",
          [](Job& job) { job.allocator.expandable_segments = true; }, false};
}

JobChange compile() {
  return to_config("--compile yes", [](ParallelConfig& c) { c.compile = true; });
}

JobChange attention_kernel(AttentionKernel kernel) {
  return {fmt::format("--attention-kernel {}", name_in(kAttentionKernelNames, kernel)),
          [kernel](Job& job) { job.attention_kernel = kernel; }, false};
}

JobChange tf32() {
  return {"--tf32 yes", [](Job& job) { job.tf32 = true; }, false};
}

JobChange to_fsdp1(const Job& job) {
  const ParallelConfig& c = job.config;
  const bool said_otherwise = c.reshard.kind != Reshard::Kind::kDefault || c.prefetch_forward ||
                              c.prefetch_backward || c.float8_all_gather ||
                              c.wrap.kind != WrapPolicy::Kind::kBlocks;
  if (c.framework != FrameworkKind::kFsdp2 || said_otherwise) return {};
  return to_config("--framework fsdp1 --root-split no", [](ParallelConfig& changed) {
    changed.framework = FrameworkKind::kFsdp1;
    changed.wrap.root_split = false;
    changed.fsdp1.strategy = strategy(changed.replicate > 1, true);
  });
}

JobChange wrap(const WrapPolicy& policy) {
  return to_config("--wrap " + wrap_text(policy), [policy](ParallelConfig& c) {
    const bool split = c.wrap.root_split;
    c.wrap = policy;
    c.wrap.root_split = split;
  });
}

JobChange root_split(bool on) {
  return to_config(fmt::format("--root-split {}", yes_no(on)),
                   [on](ParallelConfig& c) { c.wrap.root_split = on; });
}

JobChange resharding(const Job& job, bool on) {
  switch (row_of(job.config.framework).reshard) {
    case ReshardChoice::kNone:
      break;
    case ReshardChoice::kReshard:
      return to_config(fmt::format("--reshard {}", on), [on](ParallelConfig& c) {
        c.reshard = on ? Reshard::yes() : Reshard::no();
      });
    case ReshardChoice::kStrategy:
      return with_strategy(strategy(job.config.replicate > 1, on));
  }
  return {};
}

JobChange mesh(const Job& job, std::int64_t shard, std::int64_t replicate) {
  const JobChange sizes = to_config(fmt::format("--shard {} --replicate {}", shard, replicate),
                                    [shard, replicate](ParallelConfig& c) {
                                      c.shard = shard;
                                      c.replicate = replicate;
                                    });
  if (row_of(job.config.framework).reshard != ReshardChoice::kStrategy) return sizes;
  return sizes + with_strategy(strategy(replicate > 1, !keeps_gathered(job.config.fsdp1.strategy)));
}

JobChange more_gpus(const Job& job, std::int64_t times) {
  const std::int64_t shard = job.config.shard * times, gpus = job.gpus * times;
  return {fmt::format("--gpus {} --shard {}", gpus, shard), [shard, gpus](Job& changed) {
            changed.gpus = gpus;
            changed.config.shard = shard;
          }};
}

}  // namespace change
}  // namespace foreshard
