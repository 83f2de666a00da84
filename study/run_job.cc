#include "study/run_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

#include "core/error.h"
#include "core/json.h"
#include "models/adapters.h"
#include "models/load_model.h"
#include "models/plain/plain_models.h"

namespace foreshard {
namespace {

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

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
  if (contains(run.strategy, "offload")) return "CPU offload is not priced from a table row";
  if (!run.n_layers || !run.d_model || !run.n_heads || !run.seq_len || !run.n_gpus) {
    return "the row does not state the model's shape, the sequence length or the number of GPUs";
  }
  return {};
}

/// Shape of a model as an importer's configuration.
Json configuration_of(const MeasuredRun& run, std::vector<std::string>& assumptions) {
  const std::int64_t width = *run.d_model;
  const std::int64_t ffn = run.d_ff.value_or(4 * width);
  std::int64_t vocabulary = run.vocab.value_or(50257);
  if (!run.vocab) assumptions.push_back(fmt::format("vocabulary {} (not stated)", vocabulary));
  Json c;
  if (contains(run.model, "MPT")) {
    c["model_type"] = "mpt";
    c["architectures"] = Json::array({"MPTForCausalLM"});
    c["vocab_size"] = vocabulary;
    c["max_seq_len"] = *run.seq_len;
    c["d_model"] = width;
    c["n_heads"] = *run.n_heads;
    c["n_layers"] = *run.n_layers;
    c["expansion_ratio"] = ffn / width;
    return c;
  }
  if (contains(run.model, "GPT") || contains(run.model, "gpt")) {
    c["model_type"] = "gpt2";
    c["architectures"] = Json::array({"GPT2LMHeadModel"});
    c["vocab_size"] = vocabulary;
    c["n_positions"] = *run.seq_len;
    c["n_embd"] = width;
    c["n_head"] = *run.n_heads;
    c["n_layer"] = *run.n_layers;
    c["n_inner"] = ffn;
    for (const char* p : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) c[p] = 0.0;
    return c;
  }
  c["model_type"] = "llama";
  c["architectures"] = Json::array({"LlamaForCausalLM"});
  c["vocab_size"] = vocabulary;
  c["hidden_size"] = width;
  c["intermediate_size"] = ffn;
  c["num_hidden_layers"] = *run.n_layers;
  c["num_attention_heads"] = *run.n_heads;
  c["num_key_value_heads"] = run.n_kv_heads.value_or(*run.n_heads);
  c["max_position_embeddings"] = *run.seq_len;
  c["tie_word_embeddings"] = false;
  return c;
}

/// Name of the box for `--on`, from what the row says of its GPUs and network.
std::string hardware_of(const MeasuredRun& run, std::vector<std::string>& assumptions) {
  static const std::vector<std::pair<const char*, const char*>> kBoxes = {
      {"A100-80GB", "dgx-a100-80"},
      {"A100-40GB", "dgx-a100-40"},
      {"A800-80GB", "hgx-a800"},
      {"H100-96GB", "hgx-h100-96"},
      {"H100 (8x, variant not stated", "hgx-h100-96"},
      {"H100-80GB", "dgx-h100"},
      {"H100", "dgx-h100"},
      {"H200", "hgx-h200"},
      {"B200", "dgx-b200"},
      {"GB200", "gb200-nvl72"},
      {"GB300", "gb300-nvl72"},
      {"MI300X", "8x-mi300x-node"},
      {"V100-16GB", "dgx-1v-16"},
      {"V100-32GB", "dgx-1v"},
      {"RTX3090", "8x-rtx3090"},
      {"RTX4090", "8x-rtx4090"},
      {"A5000", "8x-rtx-a5000"},
      {"RTX6000Ada", "8x-rtx-6000-ada"},
      {"L40S", "8x-l40s"},
      {"T4", "4x-t4"}};
  const char* box = nullptr;
  for (const auto& [gpu, name] : kBoxes) {
    if (run.gpu.starts_with(gpu) && (box == nullptr || std::string(gpu) == "H100")) {
      if (box == nullptr) box = name;
    }
  }
  if (box == nullptr) return {};
  if (contains(run.gpu, "not stated"))
    assumptions.push_back(
        "GPU variant not stated: the 96 GB one at 500 W of other tables of that software");
  std::string name = box;
  if (*run.n_gpus > run.gpus_per_node.value_or(8)) {
    int nics = 0, rate = 0;
    if (std::sscanf(run.inter_node_link.c_str(), "RoCE %dx%d", &nics, &rate) == 2) {
      name += fmt::format("@{}x{}g-roce", nics, rate);
    } else if (std::sscanf(run.inter_node_link.c_str(), "RoCE %d", &rate) == 1) {
      name += fmt::format("@8x{}g-roce", rate / 8);
    } else if (std::sscanf(run.inter_node_link.c_str(), "InfiniBand %d", &rate) == 1 ||
               (std::sscanf(run.inter_node_link.c_str(), "%d Gb/s (per node", &rate) == 1)) {
      name += rate >= 800 ? fmt::format("@8x{}g", rate / 8)
                          : fmt::format("@{}x100g", std::max(1, rate / 100));
    } else if (std::sscanf(run.inter_node_link.c_str(), "RDMA %d Gb/s per GPU", &rate) == 1) {
      name += fmt::format("@8x{}g", rate);
    } else if (run.inter_node_link.empty()) {
      assumptions.push_back("network of the usual box (not stated)");
    }
  }
  return name;
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
    o.accumulate_in_float32 = o.one_collective_per_tensor = true;
    o.reduce_scatter = run.strategy.starts_with("ZeRO");
    if (!o.reduce_scatter) config.shard = 1;
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

/// True if scaled_dot_product_attention takes cuDNN's kernel by itself: on Hopper and Blackwell
/// from torch 2.13 on (2.9 still put flash attention first;
/// aten/src/ATen/native/transformers/cuda/sdp_utils.cpp). Rows name the date of their commit.
bool prefers_cudnn(const MeasuredRun& run, const GpuProfile& gpu) {
  if (!contains(run.attention_impl, "SDPA")) return false;
  if (gpu.generation != GpuGeneration::kHopper && gpu.generation != GpuGeneration::kBlackwell)
    return false;
  const std::size_t at = run.notes.find("(20");
  return at != std::string::npos && run.notes.substr(at + 1, 4) >= "2026";
}

void set_software(const MeasuredRun& run, RunJob& out) {
  ParallelConfig& c = out.job.config;
  c.precision.param = DType::kBFloat16;
  c.precision.reduce = DType::kFloat32;
  c.clip = true;
  if (c.framework == FrameworkKind::kDdp || c.framework == FrameworkKind::kZero1 ||
      c.framework == FrameworkKind::kZero3 || c.framework == FrameworkKind::kShardedOptimizer) {
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
  } else {
    c.optimizer = OptimizerKind::kAdamWForeach;
    c.precision.reduce = DType::kBFloat16;
    c.wrap.root_split = false;
  }
  if (contains(run.precision, "-true")) c.model_dtype = DType::kBFloat16;
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

/// Models by configuration text: rows repeat a few shapes hundreds of times.
std::shared_ptr<const Model> model_of(const Json& configuration, const std::string& row) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Model>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<const Model>& model = known[configuration.dump()];
  if (!model) model = std::make_shared<const Model>(model_from_json(configuration, row));
  return model;
}

/// Norms and rotary embedding run as fused kernels: torch.compile, or a trainer on the kernels of
/// the flash-attn library.
bool fused_kernels(const MeasuredRun& run) {
  return run.compile == "yes" || run.attention_impl.starts_with("flash-attn");
}

/// A Llama whose norms and rotary embedding lack their eager upcasts, as the plain model writes
/// them (a compiler's partitioner saves the inputs of cheap chains, not their fp32 intermediates).
std::shared_ptr<const Model> fused_llama(const MeasuredRun& run) {
  PlainModelOptions o;
  o.layers = *run.n_layers;
  o.hidden = *run.d_model;
  o.heads = *run.n_heads;
  o.kv_heads = run.n_kv_heads.value_or(*run.n_heads);
  o.ffn = run.d_ff.value_or(4 * o.hidden);
  o.vocabulary = run.vocab.value_or(32000);
  o.max_sequence = *run.seq_len;
  return std::make_shared<const Model>(plain_llama(o));
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
  const std::string hardware = hardware_of(run, out.assumptions);
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
    const Json configuration = configuration_of(run, out.assumptions);
    const bool fused = fused_kernels(run) && configuration["model_type"] == "llama";
    out.job.model = fused ? fused_llama(run) : model_of(configuration, run.row_id);
    if (const auto adapters = adapters_of(run, out.assumptions)) {
      out.job.model = std::make_shared<const Model>(with_lora(*out.job.model, *adapters));
      config.model_dtype = DType::kBFloat16;  // Frozen weights are kept in 16 bits.
      config.fsdp1.use_orig_params = true;    // Flat parameters cannot mix frozen and trainable.
    }
  } catch (const InputError& error) {
    out.refusal = error.what();
    return out;
  }
  set_checkpointing(run, config);
  set_software(run, out);
  if (contains(run.strategy + run.model, "LoRA")) {
    out.calibrates = false;
    if (run.ac_mode.empty()) {
      config.checkpoint = CheckpointKind::kFull;
      out.assumptions.push_back("full checkpointing, the default of LoRA recipes (not stated)");
    }
  }
  if (config.model_dtype != DType::kFloat32) {
    Model model = *out.job.model;
    model.set_dtype(config.model_dtype);
    out.job.model = std::make_shared<const Model>(std::move(model));
  }
  return out;
}

}  // namespace foreshard
