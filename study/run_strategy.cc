#include "study/run_strategy.h"

#include <array>
#include <cstdio>

#include "core/text.h"
#include "study/run_words.h"

namespace foreshard {
namespace {

void set_own_data_parallelism(const MeasuredRun& run, ParallelConfig& config) {
  ShardedOptimizerOptions& o = config.sharded_optimizer;
  config.framework = FrameworkKind::kShardedOptimizer;
  if (contains(run.precision, "fp32 grad accumulation")) {
    o.accumulate_in_float32 = true;
    const bool zero = run.strategy.starts_with("ZeRO");
    o.reduce_after_backward = o.gather_lists = zero;
    o.one_collective_per_tensor = !zero;
    o.one_hardware_queue = true;  // slurm_launcher.py exports CUDA_DEVICE_MAX_CONNECTIONS=1.
    if (!zero) config.shard = 1;
  } else {
    o.bucket_mib = 1024;  // reduce_bucket_size: 512 * 1024^2 elements in 16 bits.
    o.owners_broadcast = true;
    config.checkpoint_early_stop =
        false;  // Its own reentrant checkpoint runs the whole block again.
  }
  config.replicate = *run.n_gpus / config.shard;
}

/// Sharded inside each node and replicated between nodes where the row gives no other mesh. One
/// group of all ranks has nothing to reduce between groups: FULL_SHARD.
void set_hybrid(const MeasuredRun& run, ParallelConfig& config) {
  const std::int64_t node = run.gpus_per_node.value_or(8);
  if (!run.dp_shard && *run.n_gpus > node && *run.n_gpus % node == 0) {
    config.shard = node;
    config.replicate = *run.n_gpus / node;
  }
  if (config.replicate > 1) config.fsdp1.strategy = Fsdp1Options::Strategy::kHybrid;
}

void set_fsdp1(const MeasuredRun& run, ParallelConfig& config) {
  config.framework = FrameworkKind::kFsdp1;
  config.wrap.root_split =
      false;  // FSDP1's policies name blocks; embedding and head stay with the root.
  if (config.replicate > 1) config.fsdp1.strategy = Fsdp1Options::Strategy::kHybrid;
  if (contains(run.notes, "backward_prefetch=none"))
    config.fsdp1.backward_prefetch = Fsdp1Options::BackwardPrefetch::kNone;
  if (contains(run.strategy, "SHARD_GRAD_OP"))
    config.fsdp1.strategy = Fsdp1Options::Strategy::kShardGradOp;
  if (contains(run.strategy, "HYBRID")) set_hybrid(run, config);
  if (contains(run.strategy, "NO_SHARD")) {  // One group of all ranks, each with the whole.
    config.fsdp1.strategy = Fsdp1Options::Strategy::kNoShard;
    config.shard *= config.replicate;
    config.replicate = 1;
  }
}

/// DeepSpeed's stage by its digit ("ZeRO-3", "zero stage 2"); ZeRO++ is stage 3. Nothing else.
std::optional<int> zero_stage(const std::string& strategy) {
  if (!contains_any_case(strategy, "zero")) return std::nullopt;
  if (contains_any_case(strategy, "zero++")) return 3;
  for (std::size_t at = 0; at + 4 < strategy.size(); ++at) {
    if (!contains_any_case(strategy.substr(at, 4), "zero")) continue;
    const std::size_t digit = strategy.find_first_of("123", at + 4);
    if (digit != std::string::npos && digit <= at + 11) return strategy[digit] - '0';
  }
  return std::nullopt;
}

/// Which of ZeRO++'s three parts a row names; all where it names none.
void set_zero_plus_plus(const MeasuredRun& run, ZeroOptions& zero) {
  const std::string& s = run.strategy;
  const std::int64_t node = run.gpus_per_node.value_or(8);
  const bool all = !contains(s, "qwZ") && !contains(s, "hpZ") && !contains(s, "qgZ");
  zero.quantised_weights = all || contains(s, "qwZ");
  zero.quantised_gradients = all || contains(s, "qgZ");
  zero.gpus_per_node = zero.quantised_gradients ? node : 0;
  if (!all && !contains(s, "hpZ")) return;
  long ranks = node;
  if (const std::size_t at = s.find("hpZ "); at != std::string::npos)
    std::sscanf(s.c_str() + at, "hpZ %ld", &ranks);
  zero.hpz_partition_size = ranks;
}

void set_zero(const MeasuredRun& run, int stage, ParallelConfig& config) {
  constexpr std::array kStages{FrameworkKind::kZero1, FrameworkKind::kZero2, FrameworkKind::kZero3};
  config.framework = kStages[static_cast<std::size_t>(stage - 1)];
  config.shard = *run.n_gpus;
  config.replicate = 1;
  if (contains_any_case(run.strategy, "zero++")) set_zero_plus_plus(run, config.zero);
  config.zero.pin_memory = contains_any_case(run.notes, "pinned memory");
}

void set_ddp(const MeasuredRun& run, ParallelConfig& config) {
  config.framework = FrameworkKind::kDdp;
  config.shard = 1;
  config.replicate = *run.n_gpus;
  if (contains(run.strategy, "no_sync")) config.sync_each_micro_batch = false;
}

/// DeepSpeed: the optimizer unless the row names parameters; FSDP: all of it.
OffloadKind offload_of(const MeasuredRun& run, FrameworkKind framework) {
  std::string text = run.strategy;
  for (const std::string words : {"activation CPU offload", "activation offload"}) {
    if (const std::size_t at = text.find(words); at != std::string::npos)
      text.erase(at, words.size());
  }
  if (!contains_any_case(text, "offload")) return OffloadKind::kNone;
  const bool zero = framework == FrameworkKind::kZero1 || framework == FrameworkKind::kZero2 ||
                    framework == FrameworkKind::kZero3;
  if (!zero) return OffloadKind::kParameters;
  if (!contains_any_case(text, "param")) return OffloadKind::kOptimizer;
  return contains_any_case(text, "optimizer") ? OffloadKind::kBoth : OffloadKind::kParameters;
}

}  // namespace

bool own_data_parallelism(const MeasuredRun& run) {
  return contains(run.precision, "fp32 grad accumulation") ||
         (run.strategy.starts_with("ZeRO-1") && !contains(run.strategy, "DeepSpeed"));
}

bool offloads_activations(const MeasuredRun& run) {
  return contains_any_case(run.strategy, "offload") &&
         contains_any_case(run.strategy, "activation");
}

std::string strategy_refusal(const MeasuredRun& run) {
  for (const char* name : {"Megatron-FSDP", "SimpleFSDP", "JAX", "BMTrain", "Colossal"}) {
    if (contains(run.strategy, name)) return std::string(name) + " is not one of the frameworks";
  }
  return {};
}

bool set_strategy(const MeasuredRun& run, ParallelConfig& config,
                  std::vector<std::string>& assumptions) {
  config.shard = run.dp_shard.value_or(*run.n_gpus);
  config.replicate = run.dp_replicate.value_or(1);
  const std::string strategy = lower_case(run.strategy);
  if (strategy.starts_with("fsdp2")) {
    config.framework = FrameworkKind::kFsdp2;
    if (contains(run.strategy, "reshard_after_forward=False")) config.reshard = Reshard::no();
  } else if (strategy.starts_with("fsdp") || strategy.starts_with("fairscale fsdp")) {
    set_fsdp1(run, config);
    if (strategy.starts_with("fairscale"))
      assumptions.emplace_back("fairscale's FSDP as PyTorch's FSDP1");
  } else if (own_data_parallelism(run)) {
    set_own_data_parallelism(run, config);
  } else if (const auto stage = zero_stage(run.strategy)) {
    set_zero(run, *stage, config);
  } else if (strategy.starts_with("ddp")) {
    set_ddp(run, config);
  } else if (strategy.starts_with("none")) {
    config.framework = FrameworkKind::kUnsharded;
    config.shard = config.replicate = 1;
  } else {
    return false;
  }
  config.offload = offload_of(run, config.framework);
  if (offloads_activations(run)) {
    assumptions.emplace_back(
        "inputs of checkpointed blocks that wait in host memory are priced as kept on the device; "
        "memory is not compared");
  }
  return true;
}

}  // namespace foreshard
