#include "study/run_job.h"

#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "core/error.h"
#include "core/text.h"
#include "models/adapters.h"
#include "schedules/planner/framework_table.h"
#include "study/run_hardware.h"
#include "study/run_model.h"

namespace foreshard {
namespace {

/// The training program a run used, as far as time and memory depend on it.
enum class Stack : std::uint8_t {
  kComposer,  ///< llm-foundry: MPT blocks, FSDP1, unfused decoupled AdamW, metrics on the logits of
              ///< each step.
  kPlain,     ///< A PyTorch recipe (torchtitan, fms-fsdp, litgpt, ...).
};

Stack stack_of(const MeasuredRun& run) {
  return contains(run.precision, "/PURE") || contains(run.precision, "/DEFAULT") ? Stack::kComposer
                                                                                 : Stack::kPlain;
}

/// Why a run is outside what the tool expresses; empty if it is inside.
std::string refusal_of(const MeasuredRun& run) {
  const auto has = [&](const char* word) {
    return contains(run.strategy, word) || contains(run.precision, word) ||
           contains(run.model, word);
  };
  if (has("MoE") || has("+EP")) return "expert parallelism is not modelled";
  if (has("+CP") || run.cp.value_or(1) > 1) return "context parallelism is not modelled";
  if (run.tp.value_or(1) > 1) return "tensor parallelism is not modelled";
  if (run.pp.value_or(1) > 1) return "pipeline parallelism is not modelled";
  if (has("mxfp8")) return "mxfp8 products (a scale for each block of 32) are not modelled";
  if (contains(run.strategy, "Megatron")) return "Megatron-FSDP is not one of the frameworks";
  if (contains(run.strategy, "Thunder") || contains(run.compile, "thunder"))
    return "the Thunder compiler is not modelled";
  if (contains(run.strategy, "activation CPU offload"))
    return "activations in host memory are not priced from a table row";
  if (!run.n_layers || !run.d_model || !run.n_heads || !run.seq_len || !run.n_gpus) {
    return "the row does not state the model's shape, the sequence length or the number of GPUs";
  }
  return {};
}

void set_checkpointing(const MeasuredRun& run, ParallelConfig& config) {
  if (contains(run.ac_mode, "every 2nd") || run.ac_mode == "selective-layer") {
    config.checkpoint = CheckpointKind::kEveryK;
    config.checkpoint_every = 2;
  } else if (run.ac_mode.starts_with("full")) {
    config.checkpoint = CheckpointKind::kFull;
  } else if (run.ac_mode.starts_with("selective")) {
    config.checkpoint = CheckpointKind::kSelectiveOp;
  }
}

/// Trainers with a data parallelism of their own: gradients summed in fp32 (nanotron), or ZeRO-1
/// that is not DeepSpeed's (InternEvo, whose groups may be smaller than the job).
bool own_data_parallelism(const MeasuredRun& run) {
  return contains(run.precision, "fp32 grad accumulation") ||
         (run.strategy.starts_with("ZeRO-1") && !contains(run.strategy, "DeepSpeed"));
}

void set_own_data_parallelism(const MeasuredRun& run, ParallelConfig& config) {
  ShardedOptimizerOptions& o = config.sharded_optimizer;
  if (contains(run.precision, "fp32 grad accumulation")) {
    o.accumulate_in_float32 = true;
    const bool zero = run.strategy.starts_with("ZeRO");
    o.reduce_after_backward = o.gather_lists = zero;
    o.one_collective_per_tensor = !zero;
    if (!zero) config.shard = 1;
  } else {
    o.bucket_mib = 1024;  // reduce_bucket_size: 512 * 1024^2 elements in 16 bits.
    o.owners_broadcast = true;
    config.checkpoint_early_stop =
        false;  // Its own reentrant checkpoint runs the whole block again.
  }
  config.replicate = *run.n_gpus / config.shard;
}

/// 8-bit products of the blocks, by the names that recipes give them.
void set_float8(const MeasuredRun& run, ParallelConfig& config) {
  const std::string& p = run.precision;
  if (contains(p, "rowwise_gw_hp"))
    config.float8 = Float8Kind::kRowwiseHighPrecision;
  else if (contains(p, "rowwise"))
    config.float8 = Float8Kind::kRowwise;
  else if (contains(p, "float8"))
    config.float8 = Float8Kind::kTensorwise;
  else if (contains(p, "fp8") || contains(p, "FP8"))
    config.float8 = Float8Kind::kDelayed;  // Transformer Engine.
  config.float8_all_gather = contains(p, "float8 all-gather") || contains(p, "f8 all-gather");
}

/// Framework and sharding; false if the strategy is none that we know.
bool set_strategy(const MeasuredRun& run, ParallelConfig& config) {
  config.shard = run.dp_shard.value_or(*run.n_gpus);
  config.replicate = run.dp_replicate.value_or(1);
  if (run.strategy.starts_with("FSDP2")) {
    config.framework = FrameworkKind::kFsdp2;
  } else if (run.strategy.starts_with("FSDP")) {
    config.framework = FrameworkKind::kFsdp1;
    config.wrap.root_split =
        false;  // FSDP1's policies name blocks; embedding and head stay with the root.
    if (config.replicate > 1) config.fsdp1.strategy = Fsdp1Options::Strategy::kHybrid;
    if (contains(run.notes, "backward_prefetch=none")) {
      config.fsdp1.backward_prefetch = Fsdp1Options::BackwardPrefetch::kNone;
    }
    if (contains(run.strategy, "SHARD_GRAD_OP"))
      config.fsdp1.strategy = Fsdp1Options::Strategy::kShardGradOp;
    if (contains(run.strategy, "HYBRID")) config.fsdp1.strategy = Fsdp1Options::Strategy::kHybrid;
    if (contains(run.strategy, "NO_SHARD")) {  // One group of all ranks, each with the whole.
      config.fsdp1.strategy = Fsdp1Options::Strategy::kNoShard;
      config.shard *= config.replicate;
      config.replicate = 1;
    }
  } else if (own_data_parallelism(run)) {
    config.framework = FrameworkKind::kShardedOptimizer;
    set_own_data_parallelism(run, config);
  } else if (run.strategy.starts_with("ZeRO-1")) {
    config.framework = FrameworkKind::kZero1;
  } else if (contains(run.strategy, "ZeRO-3")) {
    config.framework = FrameworkKind::kZero3;
  } else if (run.strategy == "DDP") {
    config.framework = FrameworkKind::kDdp;
  } else {
    return false;
  }
  return true;
}

/// Bytes of logits traffic for each token and vocabulary entry of Composer's training metrics:
/// cross-entropy and perplexity are evaluated on the logits of every micro-batch. Each is a
/// log-softmax: under autocast 2 + 4 bytes for the cast and 4 + 4 in fp32, without it 2 + 2.
double metric_bytes(const MeasuredRun& run) {
  return 2.0 * (contains(run.precision, "amp") ? 2 + 4 + 4 + 4 : 2 + 2);
}

/// InternEvo hands each norm an fp32 copy of the residual (modeling_internlm.py:
/// norm(residual.float())). Bytes for each element of the residual above a 16-bit norm: two norms,
/// each 6 for the cast and 2 more to read forward; backward 4 more to read and write, and 6 for the
/// cast back.
double float_norm_bytes(const MeasuredRun& run, const ParallelConfig& c) {
  const double forward = 2 * (6 + 2), backward = 2 * (4 + 6);
  const double elements =
      static_cast<double>(c.micro_batch * c.sequence * c.accumulate * *run.n_layers * *run.d_model);
  return elements * (forward + backward + (c.checkpoint == CheckpointKind::kFull ? forward : 0));
}

/// Month of the row's commit, "2025-09"; empty if its notes name none.
std::string commit_month(const MeasuredRun& run) {
  const std::size_t at = run.notes.find("(20");
  return at == std::string::npos ? "" : run.notes.substr(at + 1, 7);
}

/// torchtitan compiles the loss with the model since March 2025 (its `compile.components`; month
/// from memory, unverified): no fp32 copy of the logits is written.
bool compiles_loss(const MeasuredRun& run) {
  return run.compile == "yes" && run.strategy.starts_with("FSDP2") &&
         (commit_month(run) >= "2025-03" || contains(run.notes, "torch 2.9"));
}

/// True if scaled_dot_product_attention takes cuDNN's kernel by itself: on Hopper and Blackwell
/// from torch 2.13 on (2.9 still put flash attention first;
/// aten/src/ATen/native/transformers/cuda/sdp_utils.cpp). Rows name the date of their commit.
bool prefers_cudnn(const MeasuredRun& run, const GpuProfile& gpu) {
  if (!contains(run.attention_impl, "SDPA")) return false;
  if (gpu.generation != GpuGeneration::kHopper && gpu.generation != GpuGeneration::kBlackwell)
    return false;
  return commit_month(run) >= "2026";
}

/// Bus bandwidths that the run measured itself over all of its ranks before it trained.
LinkParameters::MeasuredBus measured_links(const MeasuredRun& run) {
  LinkParameters::MeasuredBus bus;
  const int found =
      std::sscanf(run.inter_node_link.c_str(), "measured in run: AG %lf GB/s RS %lf AR %lf",
                  &bus.all_gather, &bus.reduce_scatter, &bus.all_reduce);
  if (found != 3) return {};
  // The size of the messages is not stated. With 256 MB the model's all-gathers of ordinary runs
  // are too fast by one factor (0.64 to 0.80) from 16 to 256 GPUs.
  bus.all_gather *= 1e9, bus.reduce_scatter *= 1e9, bus.all_reduce *= 1e9;
  return bus;
}

void set_software(const MeasuredRun& run, RunJob& out) {
  ParallelConfig& c = out.job.config;
  out.parameters.links.measured = measured_links(run);
  c.precision.param = DType::kBFloat16;
  c.precision.reduce = DType::kFloat32;
  c.clip = true;
  if (!row_of(c.framework).forms_units()) {
    c.model_dtype = DType::kBFloat16;  // 16-bit working weights beside fp32 masters
  }
  if (contains(run.precision, "fp16")) c.precision.param = DType::kFloat16;
  if (stack_of(run) == Stack::kComposer) {
    if (contains(run.precision, "/PURE")) {
      c.precision.reduce = DType::kBFloat16;
      c.checkpoint_early_stop = false;  // torch 1.13: the whole forward runs again
    }
    c.wrap.root_split = false;
    c.optimizer = OptimizerKind::kAdamWForLoop;
    c.loss = LossKind::kCrossEntropy;
    out.parameters.attention.kernel = AttentionKernel::kFlash1;
    const double tokens = static_cast<double>(c.micro_batch * c.sequence * c.accumulate);
    out.extra_bytes = metric_bytes(run) * tokens * static_cast<double>(run.vocab.value_or(50368));
  } else if (c.framework == FrameworkKind::kFsdp2 ||
             c.framework == FrameworkKind::kShardedOptimizer) {
    c.optimizer = contains(run.notes, "fused=False") ? OptimizerKind::kAdamWForeach
                                                     : OptimizerKind::kAdamWFused;
    if (compiles_loss(run)) c.loss = LossKind::kFused;
  } else {
    c.optimizer = OptimizerKind::kAdamWForeach;
    c.precision.reduce = DType::kBFloat16;
    c.wrap.root_split = false;
  }
  // Fine-tuning recipes keep all weights in 16 bits (torchtune's dtype: bf16).
  if (contains(run.precision, "-true") || contains(run.model, "finetune"))
    c.model_dtype = DType::kBFloat16;
  c.compile = run.compile == "yes";
  if (c.framework == FrameworkKind::kShardedOptimizer) c.sync_each_micro_batch = false;
  set_float8(run, c);
  out.calibrates = c.float8 == Float8Kind::kNone;
  if (c.framework == FrameworkKind::kShardedOptimizer && c.sharded_optimizer.owners_broadcast) {
    out.extra_bytes += float_norm_bytes(run, c);
  }
  if (contains(run.attention_impl, "cuDNN") || prefers_cudnn(run, out.job.hardware.gpu))
    out.parameters.attention.kernel = AttentionKernel::kCudnn;
}

/// Adapters of a LoRA or QLoRA run. No row states rank and targets: rank 16 on every linear module,
/// double quantisation as in QLoRA's paper.
std::optional<LoraOptions> adapters_of(const MeasuredRun& run,
                                       std::vector<std::string>& assumptions) {
  const std::string text = run.strategy + " " + run.model;
  if (!contains(text, "LoRA")) return std::nullopt;
  LoraOptions o;
  o.rank = 16;
  o.alpha = static_cast<double>(o.rank);
  o.targets = {"all-linear"};
  if (contains(text, "QLoRA")) o.base = LoraOptions::Base::k4BitDouble;
  assumptions.push_back(
      fmt::format("adapters of rank {} on all linear modules (not stated)", o.rank));
  return o;
}

}  // namespace

RunJob job_of_run(const MeasuredRun& run, const CostParameters& parameters) {
  RunJob out;
  out.parameters = parameters;
  out.refusal = refusal_of(run);
  if (!out.refusal.empty()) return out;
  ParallelConfig& config = out.job.config;
  if (!set_strategy(run, config)) {
    out.refusal = "the strategy \"" + run.strategy + "\" is none of FSDP1, FSDP2, ZeRO, DDP";
    return out;
  }
  const std::string hardware = hardware_of_run(run, out.assumptions);
  if (hardware.empty()) {
    out.refusal = "the GPU \"" + run.gpu + "\" is not in the catalogue";
    return out;
  }
  if (!run.micro_batch) out.assumptions.push_back("micro-batch 1 (not stated)");
  config.micro_batch = run.micro_batch.value_or(1);
  config.sequence = *run.seq_len;
  config.accumulate = run.grad_accum.value_or(1);
  out.job.gpus = config.world();
  try {
    out.job.hardware = load_hardware(hardware);
    out.job.model = model_of_run(run, out.assumptions);
    if (const auto adapters = adapters_of(run, out.assumptions)) {
      out.job.model = std::make_shared<const Model>(with_lora(*out.job.model, *adapters));
      config.model_dtype = DType::kBFloat16;          // Frozen weights are kept in 16 bits.
      if (config.framework == FrameworkKind::kFsdp1)  // Flat parameters do not mix both kinds.
        config.wrap.kind = WrapPolicy::Kind::kBlocksAndAdapters;
    }
  } catch (const InputError& error) {
    out.refusal = error.what();
    return out;
  }
  set_checkpointing(run, config);
  set_software(run, out);
  if (contains(run.strategy, "CPU offload")) {
    config.offload = OffloadKind::kParameters;
    out.calibrates = false;
  }
  const bool adapters = contains(run.strategy + run.model, "LoRA");
  if (adapters) out.calibrates = false;
  if (run.ac_mode.empty() && (adapters || contains(run.model, "finetune"))) {
    config.checkpoint = CheckpointKind::kFull;
    out.assumptions.push_back(
        "full checkpointing, the default of fine-tuning recipes (not stated)");
  }
  if (config.model_dtype != DType::kFloat32) {
    Model model = *out.job.model;
    model.set_dtype(config.model_dtype);
    out.job.model = std::make_shared<const Model>(std::move(model));
  }
  return out;
}

}  // namespace foreshard
