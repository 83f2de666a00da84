#include "study/run_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <optional>

#include "core/error.h"
#include "core/text.h"
#include "models/adapters.h"
#include "schedules/planner/framework_table.h"
#include "study/run_hardware.h"
#include "study/run_model.h"
#include "study/run_strategy.h"
#include "study/run_words.h"

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

/// A word that the column does not take.
std::string unknown_word(const char* column, const std::string& found, const char* allowed) {
  return fmt::format("column {}: found \"{}\", allowed: {}", column, found, allowed);
}

bool knows_any(const std::string& text, std::initializer_list<const char*> words) {
  return text.empty() || std::any_of(words.begin(), words.end(), [&](const char* word) {
           return contains_any_case(text, word);
         });
}

/// Words of the columns that have a list of their own; empty if each is known.
std::string unknown_words(const MeasuredRun& run) {
  const std::string compile = lower_case(run.compile);
  if (!compile.empty() && !compile.starts_with("yes") && !compile.starts_with("no") &&
      !knows_any(compile, {"eager", "thunder"}))
    return unknown_word("compile", run.compile, "yes, no, eager, aot_eager, thunder, or empty: no");
  if (!knows_any(run.attention_impl, {"flash", "SDPA", "cuDNN", "FA2", "FA3", "FA4", "eager"}))
    return unknown_word("attention_impl", run.attention_impl,
                        "SDPA, flash-attn 2, flash-attn 3, flash-attn 4, cuDNN, eager, or empty: "
                        "flash-attn 2");
  if (run.peak_mem_gib &&
      !knows_any(run.mem_kind, {"allocated", "active", "reserved", "device", "process"}))
    return unknown_word("mem_kind", run.mem_kind,
                        "reserved, allocated, active, device, process, or empty: reserved");
  return {};
}

/// Why a run is outside what the tool expresses; empty if it is inside.
std::string refusal_of(const MeasuredRun& run) {
  const auto has = [&](const char* word) {
    return contains(run.strategy, word) || contains(run.precision, word) ||
           contains(run.model, word);
  };
  if (has("MoE") || has("+EP")) return "expert parallelism is not modelled";
  if (run.cp.value_or(has("+CP") ? 2 : 1) > 1) return "context parallelism is not modelled";
  if (run.tp.value_or(1) > 1) return "tensor parallelism is not modelled";
  if (run.pp.value_or(1) > 1) return "pipeline parallelism is not modelled";
  if (has("mxfp8")) return "mxfp8 products (a scale for each block of 32) are not modelled";
  if (std::string refusal = strategy_refusal(run); !refusal.empty()) return refusal;
  if (offloads_activations(run) && !run.ac_mode.starts_with("full"))
    return "saved activations in host memory are not priced, only the inputs of checkpointed "
           "blocks";
  if (!run.n_gpus) return "column n_gpus: the row does not state the number of GPUs";
  if (!run.seq_len) return "column seq_len: the row does not state the sequence length";
  if (!states_shape(run))
    return fmt::format(
        "column model: \"{}\" is none of `foreshard models`, and n_layers, d_model, "
        "n_heads do not state the model's shape",
        run.model);
  if (contains(run.notes, "multi-node") && run.inter_node_link.empty())
    return "the row spans nodes over a network that it does not name";
  return unknown_words(run);
}

/// False if the words are none that we know.
bool set_checkpointing(const MeasuredRun& run, ParallelConfig& config,
                       std::vector<std::string>& assumptions) {
  const std::string& mode = run.ac_mode;
  if (contains(mode, "every 2nd") || mode == "selective-layer") {
    config.checkpoint = CheckpointKind::kEveryK;
    config.checkpoint_every = 2;
  } else if (mode.starts_with("full")) {
    config.checkpoint = CheckpointKind::kFull;
  } else if (mode.starts_with("selective")) {
    config.checkpoint = CheckpointKind::kSelectiveOp;
  } else if (mode == "not stated") {
    assumptions.emplace_back("no checkpointing (not stated)");
  } else {
    return mode.empty() || mode.starts_with("none") || mode == "no";
  }
  return true;
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

/// Dtypes of weights, compute and reduction. False if the text names none that we know.
bool set_precision(const MeasuredRun& run, ParallelConfig& c,
                   std::vector<std::string>& assumptions) {
  const std::string& p = run.precision;
  const auto has = [&](const char* word) { return contains_any_case(p, word); };
  const bool sixteen = has("bf16") || has("bfloat16") || has("fp16") || has("float16");
  const bool eight = has("fp8") || has("float8") || has("4-bit");
  if (p.empty()) assumptions.emplace_back("bf16 (precision not stated)");
  if (!sixteen && !eight && (has("fp32") || has("float32"))) {
    c.precision.param = c.precision.reduce = DType::kFloat32;
    return true;
  }
  c.precision.param =
      has("fp16") && !has("bf16") && !has("bfloat16") ? DType::kFloat16 : DType::kBFloat16;
  c.precision.reduce = DType::kFloat32;
  // Trainers that call the model under autocast: transformers and accelerate, Lightning. Composer's
  // "amp_" does so too, around blocks whose norms switch it off.
  const bool mixed = contains(p, "AMP") || has("mixed") || has("autocast") || has("HF --bf16");
  if (mixed && row_of(c.framework).precision != PrecisionRule::kMasters) {
    c.autocast = true;
  } else if (!row_of(c.framework).forms_units()) {
    c.model_dtype = *c.precision.param;  // 16-bit working weights beside fp32 masters
  }
  // Fine-tuning recipes keep all weights in 16 bits (torchtune's dtype: bf16).
  if (contains(p, "-true") || contains(p, "pure") || contains(run.model, "finetune"))
    c.model_dtype = *c.precision.param;
  return sixteen || eight || p.empty();
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
  // are too fast by one factor (1.15 to 1.19; 16 GPUs 1.37) from 32 to 256 GPUs.
  bus.all_gather *= 1e9, bus.reduce_scatter *= 1e9, bus.all_reduce *= 1e9;
  return bus;
}

/// The attention kernel where the row names it.
void set_attention(const MeasuredRun& run, RunJob& out) {
  const std::string& text = run.attention_impl;
  AttentionKernel& kernel = out.parameters.attention.kernel;
  if (contains_any_case(text, "cuDNN") || prefers_cudnn(run, out.job.hardware.gpu)) {
    kernel = AttentionKernel::kCudnn;
  } else if (contains_any_case(text, "flash-attn 3") || contains_any_case(text, "FA3")) {
    kernel = AttentionKernel::kFlash3;
  } else if (contains_any_case(text, "flash-attn 4") || contains_any_case(text, "FA4")) {
    kernel = AttentionKernel::kCudnn;
    out.assumptions.emplace_back("flash-attn 4 at the rate of cuDNN's kernel");
  } else if (text.starts_with("eager") || contains(run.model, "minGPT")) {
    out.job.config.attention = AttentionKind::kEager;  // mingpt/model.py writes its products out.
  }
}

void set_software(const MeasuredRun& run, RunJob& out) {
  ParallelConfig& c = out.job.config;
  out.parameters.links.measured = measured_links(run);
  c.clip = true;
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
    if (c.precision.param != DType::kFloat32) c.precision.reduce = c.precision.param;
    c.wrap.root_split = false;
  }
  if (contains_any_case(run.notes, "Liger")) c.loss = LossKind::kFused;
  c.compile = run.compile.starts_with("yes") || contains(run.compile, "thunder");
  if (contains(run.compile, "thunder"))
    out.assumptions.emplace_back("Thunder's fusion as torch.compile's");
  if (c.framework == FrameworkKind::kShardedOptimizer) c.sync_each_micro_batch = false;
  set_float8(run, c);
  out.calibrates = c.float8 == Float8Kind::kNone;
  if (c.framework == FrameworkKind::kShardedOptimizer && c.sharded_optimizer.owners_broadcast) {
    out.extra_bytes += float_norm_bytes(run, c);
  }
  set_attention(run, out);
}

/// Adapters of a LoRA or QLoRA run: of the stated rank on the stated matrices ("LoRA r16
/// (q,k,v,o)"), else of rank 16 on every linear module; double quantisation as in QLoRA's paper.
std::optional<LoraOptions> adapters_of(const MeasuredRun& run,
                                       std::vector<std::string>& assumptions) {
  const std::string text = run.strategy + " " + run.model;
  const std::size_t at = text.find("LoRA");
  if (at == std::string::npos) return std::nullopt;
  LoraOptions o;
  long rank = 0;
  const bool stated = std::sscanf(text.c_str() + at, "LoRA r%ld", &rank) == 1 && rank > 0;
  o.rank = stated ? rank : 16;
  o.alpha = static_cast<double>(o.rank);
  o.dtype = LoraOptions::Dtype::kBase;  // torchtune, lit-gpt, fsdp_qlora build them so.
  if (contains(text, "(q,k,v,o)"))
    o.targets = {"q_proj", "k_proj", "v_proj", "o_proj"};
  else if (contains(text, "(q,v)"))
    o.targets = {"q_proj", "v_proj"};
  else
    o.targets = {"all-linear"};
  if (contains(text, "QLoRA")) o.base = LoraOptions::Base::k4BitDouble;
  const bool all = o.targets.front() == "all-linear";
  if (!stated || all) {
    assumptions.push_back(fmt::format("adapters of rank {}{} (not stated)", o.rank,
                                      all ? " on all linear modules" : ""));
  }
  return o;
}

/// Strategy, precision and checkpointing; what of them is unknown is the refusal.
void set_configuration(const MeasuredRun& run, RunJob& out) {
  ParallelConfig& config = out.job.config;
  if (!set_strategy(run, config, out.assumptions)) {
    out.refusal = unknown_word("strategy", run.strategy,
                               "FSDP2, FSDP1, FSDP, DeepSpeed ZeRO-1 (-2, -3), ZeRO++, DDP, none");
  } else if (!set_precision(run, config, out.assumptions)) {
    out.refusal = unknown_word("precision", run.precision,
                               "bf16, fp16, fp32, float8 tensorwise, float8 rowwise, FP8, 4-bit, "
                               "or empty: bf16");
  } else if (!set_checkpointing(run, config, out.assumptions)) {
    out.refusal =
        unknown_word("ac_mode", run.ac_mode,
                     "none, full, selective, selective-layer, not stated, or empty: none");
  }
}

/// Of the catalogue's machine that the run was on; "" where `machine` stands for it, or with a
/// refusal.
std::string hardware_name(const MeasuredRun& run, const HardwareProfile* machine, RunJob& out) {
  std::string hardware;
  if (machine == nullptr) {
    hardware = hardware_of_run(run, out.assumptions);
    if (hardware.empty()) out.refusal = unknown_word("gpu", run.gpu, "a GPU of `foreshard hw`");
  } else if (names_other_gpu(run.gpu, machine->gpu)) {
    out.refusal = unknown_word("gpu", run.gpu, (machine->gpu.name + ", or empty").c_str());
  }
  return hardware;
}

void set_model(const MeasuredRun& run, RunJob& out) {
  out.job.model = model_of_run(run, out.assumptions);
  const auto adapters = adapters_of(run, out.assumptions);
  if (!adapters) return;
  out.job.model = std::make_shared<const Model>(with_lora(*out.job.model, *adapters));
  ParallelConfig& config = out.job.config;
  config.model_dtype = DType::kBFloat16;          // Frozen weights are kept in 16 bits.
  if (config.framework == FrameworkKind::kFsdp1)  // Flat parameters do not mix both kinds.
    config.wrap.kind = WrapPolicy::Kind::kBlocksAndAdapters;
}

}  // namespace

RunJob job_of_run(const MeasuredRun& stated, const CostParameters& parameters,
                  const HardwareProfile* machine) {
  const MeasuredRun run = with_shape_of_name(stated);
  RunJob out;
  out.parameters = parameters;
  out.refusal = refusal_of(run);
  if (!out.refusal.empty()) return out;
  ParallelConfig& config = out.job.config;
  set_configuration(run, out);
  if (!out.refusal.empty()) return out;
  const std::string hardware = hardware_name(run, machine, out);
  if (!out.refusal.empty()) return out;
  if (config.world() != *run.n_gpus) {
    out.refusal = fmt::format("columns dp_shard, dp_replicate: {} x {} ranks, n_gpus is {}",
                              config.shard, config.replicate, *run.n_gpus);
    return out;
  }
  if (!run.micro_batch) out.assumptions.push_back("micro-batch 1 (not stated)");
  config.micro_batch = run.micro_batch.value_or(1);
  config.sequence = *run.seq_len;
  config.accumulate = run.grad_accum.value_or(1);
  out.job.gpus = config.world();
  try {
    out.job.hardware = machine == nullptr ? load_hardware(hardware) : *machine;
    apply_stated_nodes(run, out.job.hardware);
    if (machine == nullptr) apply_stated_machine(run, out.job.hardware, out.assumptions);
    set_model(run, out);
  } catch (const InputError& error) {
    out.refusal = error.what();
    return out;
  }
  set_software(run, out);
  if (config.offload != OffloadKind::kNone || config.precision.param == DType::kFloat32)
    out.calibrates = false;
  out.compares_memory = !offloads_activations(run);
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
