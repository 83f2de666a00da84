#include <fmt/format.h>

#include <algorithm>

#include "cli/framework_options.h"
#include "cli/job_options.h"
#include "cli/option_scope.h"
#include "core/parse_number.h"
#include "hwprofiles/spelling.h"
#include "models/adapter_targets.h"
#include "models/load_model.h"
#include "schedules/planner/config_names.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/root_split.h"
#include "schedules/planner/wrap_policy.h"

namespace foreshard::cli {
namespace {

constexpr std::int64_t kMostTokens = 1 << 26;

/// The value whose name was given; `fallback` where the option is absent or (reported elsewhere)
/// wrong.
template <typename Enum, std::size_t N>
Enum choose(const Arguments& a, const std::string& option, Enum fallback,
            const EnumName<Enum> (&values)[N]) {
  const std::string text = a.text(option);
  for (const EnumName<Enum>& v : values)
    if (v.name == text) return v.value;
  return fallback;
}

template <typename Read>
void guarded(Arguments& a, Read read) {
  try {
    read();
  } catch (const InputError& e) {
    a.report(e);
  }
}

/// The N of "every:N"; nullopt if the text is not of that form.
std::optional<std::int64_t> number_after(const std::string& text, std::string_view prefix) {
  if (text.rfind(prefix, 0) != 0) return std::nullopt;
  const auto n = parse_number<std::int64_t>(text.substr(prefix.size()));
  return n && *n >= 1 && *n <= INT32_MAX ? n : std::nullopt;
}

void read_reshard(Arguments& a, Reshard& reshard) {
  if (!a.has("reshard")) return;
  const std::string text = a.text("reshard");
  if (text == "true" || text == "yes")
    reshard = Reshard::yes();
  else if (text == "false" || text == "no")
    reshard = Reshard::no();
  else if (const auto n = number_after(text, ""))
    reshard = Reshard::to_group(*n);
  else
    a.report("reshard", fmt::format("found \"{}\"", text),
             "allowed: true, false, or a number of ranks");
}

void read_checkpoint(Arguments& a, ParallelConfig& c) {
  const std::string text = a.text("checkpoint", "none");
  if (text == "none")
    c.checkpoint = CheckpointKind::kNone;
  else if (text == "full")
    c.checkpoint = CheckpointKind::kFull;
  else if (text == "selective")
    c.checkpoint = CheckpointKind::kSelectiveOp;
  else if (const auto k = number_after(text, "every:"))
    c.checkpoint = CheckpointKind::kEveryK, c.checkpoint_every = *k;
  else
    a.report("checkpoint", fmt::format("found \"{}\"", text),
             "allowed: none, full, every:K, selective");
  c.checkpoint_reentrant = a.yes_no("checkpoint-reentrant", false);
  c.checkpoint_outside_units =
      a.yes_no("checkpoint-outside-units", row_of(c.framework).checkpoint_outside);
  if (c.checkpoint_reentrant && c.checkpoint == CheckpointKind::kSelectiveOp)
    a.report("checkpoint-reentrant", "a selective checkpoint is never reentrant", "allowed: no");
  if (c.checkpoint == CheckpointKind::kNone) {
    for (const char* name : {"checkpoint-reentrant", "checkpoint-outside-units"})
      if (a.has(name)) a.report(name, "nothing is checkpointed", "add --checkpoint full");
  }
}

bool builds_in_compute_dtype(FrameworkKind framework) {
  const FrameworkRow& row = row_of(framework);
  return row.precision == PrecisionRule::kMasters && !row.casts_model;
}

/// Frozen weights under adapters are kept in 16 bits (--lora-base).
void read_precision(Arguments& a, ParallelConfig& c) {
  if (a.has("lora-rank")) c.model_dtype = DType::kBFloat16;
  if (const auto t = read_dtype(a, "model-dtype")) c.model_dtype = *t;
  if (const auto t = read_dtype(a, "param-dtype")) c.precision.param = t;
  if (const auto t = read_dtype(a, "reduce-dtype")) c.precision.reduce = t;
  if (builds_in_compute_dtype(c.framework))
    c.model_dtype = c.precision.param.value_or(c.model_dtype);
  // Around units that compute in 16 bits, as accelerate and Lightning wrap the forward call: norms
  // and powers then run in fp32.
  if (row_of(c.framework).precision == PrecisionRule::kMixed && a.yes_no("autocast", false)) {
    c.autocast = true;
    if (c.precision.param.value_or(DType::kFloat32) == DType::kFloat32)
      a.report("autocast", "computes in 16 bits, the units in fp32", "--param-dtype bf16 or fp16");
  }
}

/// Whole parameters in their own dtype, reduced in it; another dtype of compute is autocast's.
void read_whole_precision(Arguments& a, ParallelConfig& c) {
  if (row_of(c.framework).precision != PrecisionRule::kParameters) return;
  if (a.yes_no("ddp-mixed-precision", false)) {
    c.ddp.mixed_precision = MixedPrecision{};
    c.ddp.mixed_precision->param = c.precision.param;
    if (a.has("reduce-dtype")) c.ddp.mixed_precision->reduce = c.precision.reduce;
    if (a.has("autocast"))
      a.report("autocast", "is not for mixed precision of DDP's own", "one of them");
    c.precision.param = c.precision.reduce = c.model_dtype;
    return;
  }
  if (!a.has("param-dtype") && c.model_dtype != DType::kFloat32) c.precision.param = c.model_dtype;
  const bool wanted = a.yes_no("autocast", true);
  if (!wanted && !a.has("param-dtype")) c.precision.param = c.model_dtype;
  // Over 16-bit weights only where asked for: fp32 adapters and norms are what it changes there.
  const bool over_sixteen =
      a.has("autocast") && c.precision.param == c.model_dtype && c.model_dtype != DType::kFloat32;
  c.autocast =
      wanted &&
      (over_sixteen || (c.model_dtype == DType::kFloat32 && c.precision.param == DType::kBFloat16));
  if (a.has("autocast") && wanted && c.precision.param == DType::kFloat32)
    a.report("autocast", "computes in 16 bits, --param-dtype is fp32", "--param-dtype bf16");
  if (!c.autocast && c.precision.param != c.model_dtype) {
    a.report("param-dtype",
             fmt::format("{} over parameters in {} is not planned without sharding",
                         name_of(*c.precision.param), name_of(c.model_dtype)),
             "bf16 over fp32 (autocast), or --model-dtype of the same name");
  }
  if (a.has("reduce-dtype") && c.precision.reduce != c.model_dtype) {
    a.report("reduce-dtype", "gradients are reduced in the parameters' dtype",
             "--ddp-comm-hook bf16 or fp16 compresses them");
  }
  c.precision.reduce = c.model_dtype;
}

void read_training(Arguments& a, ParallelConfig& c) {
  c.micro_batch = a.integer("micro-batch", c.micro_batch, 1, 1 << 20);
  c.sequence = a.count("seq", c.sequence, 1, kMostTokens, kThousandTokens);
  c.accumulate = a.integer("accumulate", 1, 1, 1 << 16);
  c.sync_each_micro_batch = a.yes_no("sync-each-micro-batch", true);
  read_precision(a, c);
  read_whole_precision(a, c);
  read_checkpoint(a, c);
  c.optimizer = choose(a, "optimizer", OptimizerKind::kAdamWFused, kOptimizerNames);
  c.clip = a.yes_no("clip", true);
  c.compile = a.yes_no("compile", false);
  c.float8 = choose(a, "float8", Float8Kind::kNone, kFloat8Names);
  c.float8_all_gather = a.yes_no("float8-all-gather", false);
  if (c.float8_all_gather && c.float8 == Float8Kind::kNone)
    a.report("float8-all-gather", "gathers 8-bit weights, but no product takes them",
             "add --float8 tensorwise");
  c.float8_precompute_scales = a.yes_no("float8-precompute-scales", true);
  if (a.has("float8-precompute-scales") && !c.float8_all_gather)
    a.report("float8-precompute-scales", "no weight is gathered in 8 bits",
             "add --float8-all-gather yes");
  c.attention = choose(a, "attention", AttentionKind::kFlash, kAttentionNames);
  c.loss = choose(a, "loss", LossKind::kCrossEntropyFloat, kLossNames);
  c.offload = choose(a, "offload", OffloadKind::kNone, kOffloadNames);
}

/// World = shard x replicate; what is not given follows from the number of GPUs.
void read_mesh(Arguments& a, Job& job) {
  ParallelConfig& c = job.config;
  const FrameworkRow& framework = row_of(c.framework);
  const std::int64_t gpus = job.gpus;
  if (framework.whole_copies()) {
    if (framework.ranks == RankLayout::kOneDevice && gpus != 1)
      a.report("framework",
               fmt::format("{} trains on one GPU, found --gpus {}", framework.name, gpus),
               "allowed: --gpus 1, or ddp");
    c.shard = 1;
    c.replicate = gpus;
    if (a.integer("replicate", gpus, 1, kMostGpus) != gpus)
      a.report("replicate", fmt::format("every GPU of {} holds a copy", framework.name),
               fmt::format("leave it out, or --replicate {}", gpus));
    return;
  }
  const bool has_shard = a.has("shard"), has_replicate = a.has("replicate");
  c.shard = a.integer("shard", 1, 1, kMostGpus);
  c.replicate = a.integer("replicate", 1, 1, kMostGpus);
  if (has_shard != has_replicate && gpus % (has_shard ? c.shard : c.replicate) != 0) {
    a.report(has_shard ? "shard" : "replicate",
             fmt::format("{} does not divide the {} GPUs", has_shard ? c.shard : c.replicate, gpus),
             "ranks of a shard group x copies = --gpus");
    return;
  }
  if (!has_shard)
    c.shard = gpus / c.replicate;
  else if (!has_replicate)
    c.replicate = gpus / c.shard;
  if (c.shard * c.replicate != gpus)
    a.report(has_shard ? "shard" : "replicate",
             fmt::format("shard {} x replicate {} is not the {} GPUs", c.shard, c.replicate, gpus),
             "their product must be --gpus");
}

/// A kernel that the GPU does not have: refused where it was asked for, else SDPA takes another.
void settle_attention(Arguments& a, Job& job) {
  const std::string lacks = settle_attention(job, a.has("attention-kernel"));
  if (lacks.empty()) return;
  if (!takes_flash(job.config.attention)) return a.note("--attention sdpa is taken: " + lacks);
  const bool library = job.config.attention == AttentionKind::kFlashLibrary;
  std::vector<std::string_view> has;
  for (const auto& [kernel, name] : kAttentionKernelNames)
    if (lacks_attention_kernel(kernel, job.hardware.gpu).empty()) has.push_back(name);
  const bool flash2 = lacks_attention_kernel(AttentionKernel::kFlash2, job.hardware.gpu).empty();
  a.report(library ? "attention" : "attention-kernel", lacks,
           flash2 ? fmt::format("it has {}", fmt::join(has, ", "))
                  : "--attention sdpa: the kernel that PyTorch takes there");
}

/// Defaults that do not work with this model give way to the nearest that do; the user is told.
void fit_defaults(Arguments& a, const Model& model, ParallelConfig& c) {
  const auto follows = [](const ModelArgument& m) {
    return (m.tokens && m.shape.empty()) ||
           std::find(m.shape.begin(), m.shape.end(), 0) != m.shape.end();
  };
  const bool has_tokens = std::any_of(model.arguments.begin(), model.arguments.end(),
                                      [](const ModelArgument& m) { return m.tokens; });
  const bool follows_sequence =
      std::any_of(model.arguments.begin(), model.arguments.end(), follows);
  if (a.has("seq") && !follows_sequence && !model.arguments.empty())
    a.report("seq",
             fmt::format("{} takes {}", model.name,
                         has_tokens ? "tokens of a length of its own" : "no tokens"),
             "leave it out");
  if (!a.has("seq") && model.longest_sequence > 0 && c.sequence > model.longest_sequence) {
    a.note(fmt::format("--seq {} is taken, the model's positions (default {})",
                       model.longest_sequence, c.sequence));
    c.sequence = model.longest_sequence;
  }
  if (!a.has("seq") && c.sequence < model.shortest_sequence) {
    a.note(fmt::format("--seq {} is taken, which a sample's images fill (default {})",
                       model.shortest_sequence, c.sequence));
    c.sequence = model.shortest_sequence;
  }
  if (a.has("root-split") || !row_of(c.framework).forms_units()) return;
  if (const auto tie = tie_across_root_split(model, c.wrap)) {
    a.note(fmt::format("--root-split no is taken: two units would share a parameter ({})", *tie));
    c.wrap.root_split = false;
  }
}

}  // namespace

std::optional<DType> read_dtype(Arguments& a, const std::string& option) {
  if (!a.has(option)) return std::nullopt;
  const auto t = parse_dtype(a.text(option));
  if (t && is_floating(*t) && size_of(*t) > 1) return t;
  if (t && is_floating(*t))
    a.report(
        option,
        fmt::format("PyTorch has no products, norms or activations of {} tensors", name_of(*t)),
        "8-bit products: --float8 tensorwise or rowwise; allowed here: fp32, bf16, fp16, fp64");
  else
    a.report(option, fmt::format("\"{}\" is no floating-point dtype", a.text(option)),
             "allowed: fp32, bf16, fp16, fp64");
  return std::nullopt;
}

void read_wrap(Arguments& a, FrameworkKind framework, WrapPolicy& wrap) {
  wrap.root_split = a.yes_no("root-split", row_of(framework).root_split);
  if (!a.has("wrap")) return;
  try {
    parse_wrap(a.text("wrap"), wrap);
  } catch (const InputError& e) {
    for (const Issue& issue : e.issues()) a.report("wrap", issue.message, issue.hint);
  }
}

namespace {

/// FSDP1's other policies choose embedding and head, or do not, by themselves.
void check_root_split_of_policy(Arguments& a, const ParallelConfig& c) {
  if (c.framework != FrameworkKind::kFsdp1 || !a.has("root-split") || !c.wrap.root_split ||
      c.fsdp1.policy == Fsdp1Options::Policy::kFromWrap)
    return;
  a.report(
      "root-split",
      fmt::format("means nothing to --fsdp1-policy {}", name_in(kFsdp1PolicyNames, c.fsdp1.policy)),
      "--fsdp1-policy lambda");
}

/// AdamW of PyTorch 2.15 raises where a gradient's dtype is not its parameter's, fused, foreach and
/// one by one; SGD takes it.
void check_gradient_dtype(Arguments& a, const ParallelConfig& c) {
  const bool adamw = c.optimizer != OptimizerKind::kSgd && c.optimizer != OptimizerKind::kNone;
  if (c.framework != FrameworkKind::kFsdp1 || !c.fsdp1.keep_low_precision_grads || !adamw ||
      c.precision.param.value_or(c.model_dtype) == c.model_dtype)
    return;
  a.report("fsdp1-keep-low-precision-grads",
           fmt::format("AdamW does not take {} gradients of {} parameters",
                       short_dtype(*c.precision.param), short_dtype(c.model_dtype)),
           fmt::format("--optimizer sgd, or --model-dtype {}", short_dtype(*c.precision.param)));
}

void read_hardware(Arguments& a, Job& job) {
  job.hardware = load_hardware(a.text("on"));
  if (job.config.zero.gpus_per_node == 0)
    job.config.zero.gpus_per_node = static_cast<std::int64_t>(job.hardware.node.gpus.value);
  if (const std::string taken = size_taken(a.text("on")); !taken.empty()) a.note("--on " + taken);
  settle_attention(a, job);
  if (job.tf32 && !job.hardware.gpu.peak_tf32.known())
    a.report("tf32", fmt::format("{} has no TF32", job.hardware.gpu.name), "allowed here: no");
}

void check_checkpoints(Arguments& a, const Model& model, const ParallelConfig& c) {
  const auto blocks = static_cast<std::int64_t>(model.roles.blocks.size());
  if (c.checkpoint != CheckpointKind::kEveryK || c.checkpoint_every <= blocks || blocks == 0)
    return;
  a.report("checkpoint",
           fmt::format("every:{} checkpoints the first block only", c.checkpoint_every),
           fmt::format("the model has {} blocks", blocks));
}

/// The model in the dtypes that the framework builds it in; also what the options leave to it.
Model read_model(Arguments& a, ParallelConfig& c) {
  std::vector<std::string> warnings;
  Model model = load_model(with_adapters(a.positional(0), a), &warnings);
  for (std::string& w : warnings) a.note(std::move(w));
  if (a.has("model-dtype") || a.has("lora-rank") || builds_in_compute_dtype(c.framework))
    model.set_dtype(c.model_dtype);
  // DeepSpeed and sharded optimizers cast the whole module, adapters too.
  if (adapter_facts(model) && row_of(c.framework).precision == PrecisionRule::kMasters)
    model.cast(compute_dtype(c));
  fit_defaults(a, model, c);
  read_framework_options_with_model(a, model, c);
  check_checkpoints(a, model, c);
  return model;
}

}  // namespace

Job read_job(Arguments& a, const JobNeeds& needs) {
  Job job;
  ParallelConfig& c = job.config;
  c.framework = FrameworkKind::kFsdp2;
  if (const FrameworkRow* row = find_framework(a.text("framework"))) c.framework = row->kind;
  check_option_scopes(a, c.framework);
  if (needs.gpus && !a.has("gpus")) a.report("gpus", "is missing", "how many GPUs? e.g. --gpus 8");
  if (needs.gpus) {
    job.gpus = a.integer("gpus", 1, 1, kMostGpus);
    read_mesh(a, job);
  } else {
    c.shard = a.integer("shard", 1, 1, kMostGpus);
    c.replicate = a.integer("replicate", 1, 1, kMostGpus);
  }
  read_wrap(a, c.framework, c.wrap);
  read_reshard(a, c.reshard);
  if (a.has("prefetch-forward")) c.prefetch_forward = a.integer("prefetch-forward", 0, 0, 1000);
  if (a.has("prefetch-backward")) c.prefetch_backward = a.integer("prefetch-backward", 0, 0, 1000);
  read_training(a, c);
  job.attention_kernel =
      choose(a, "attention-kernel", AttentionKernel::kFlash2, kAttentionKernelNames);
  job.tf32 = a.yes_no("tf32", false);
  if (a.has("alloc-conf"))
    guarded(a, [&] { job.allocator = parse_alloc_conf(a.text("alloc-conf")); });
  read_framework_options(a, c);
  check_option_needs(a, job);
  check_root_split_of_policy(a, c);
  check_gradient_dtype(a, c);
  using Hardware = JobNeeds::Hardware;
  if (needs.hardware == Hardware::kRequired && !a.has("on"))
    a.report("on", "is missing", "which machine? e.g. --on dgx-h100; foreshard hw lists them");
  if (needs.hardware != Hardware::kLeftToCaller && a.has("on"))
    guarded(a, [&] { read_hardware(a, job); });
  if (!a.positional(0).empty()) {
    guarded(a, [&] { job.model = std::make_shared<const Model>(read_model(a, c)); });
  } else if (!a.positionals().empty()) {  // Else it is missing, which was said already.
    a.report(InputError(
        Issue{"MODEL", "", "is empty",
              "a catalogue name (foreshard models lists them), a config.json or a graph file"}));
  }
  return job;
}

}  // namespace foreshard::cli
