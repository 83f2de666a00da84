#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cli/job_options.h"
#include "cli/option_scope.h"
#include "models/load_model.h"

namespace foreshard::cli {
namespace {

constexpr std::int64_t kMostGpus = 1 << 20, kMostTokens = 1 << 26,
                       kMostElements = std::int64_t{1} << 50;

/// Position of the chosen name in a list that is in the order of an enumeration.
template <typename Enum>
Enum choose(const Arguments& a, const std::string& option, Enum fallback,
            const std::vector<std::string>& names) {
  const std::string text = a.text(option);
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == text) return static_cast<Enum>(i);
  return fallback;
}

/// The N of "every:N"; nullopt if the text is not of that form.
std::optional<std::int64_t> number_after(const std::string& text, std::string_view prefix) {
  if (text.rfind(prefix, 0) != 0) return std::nullopt;
  std::int64_t n = 0;
  const char* begin = text.data() + prefix.size();
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(begin, end, n);
  if (error != std::errc() || at != end || n < 1 || n > kMostElements) return std::nullopt;
  return n;
}

/// "a,b,c".
std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> names;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) names.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return names;
}

/// FSDP2's recipes give embedding and head units of their own, FSDP1's policies name blocks only.
void read_wrap(Arguments& a, FrameworkKind framework, WrapPolicy& wrap) {
  using K = WrapPolicy::Kind;
  const std::string text = a.text("wrap", "blocks");
  wrap.root_split = a.yes_no("root-split", framework != FrameworkKind::kFsdp1);
  if (text == "blocks") {
    wrap.kind = K::kBlocks;
  } else if (text == "root") {
    wrap.kind = K::kRootOnly;
  } else if (const auto every = number_after(text, "every:")) {
    wrap.kind = K::kEveryK;
    wrap.every = *every;
  } else if (const auto size = number_after(text, "size:")) {
    wrap.kind = K::kSize;
    wrap.min_elements = *size;
  } else if (text.rfind("modules:", 0) == 0 && text.size() > 8) {
    wrap.kind = K::kModules;
    wrap.modules = split_names(text.substr(8));
  } else {
    a.report("wrap", fmt::format("found \"{}\"", text),
             "allowed: blocks, every:K, root, size:N, modules:a,b,c");
  }
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
      a.yes_no("checkpoint-outside-units", c.framework == FrameworkKind::kZero3);
  if (c.checkpoint_reentrant && c.checkpoint == CheckpointKind::kSelectiveOp)
    a.report("checkpoint-reentrant", "a selective checkpoint is never reentrant", "allowed: no");
}

std::optional<DType> read_dtype(Arguments& a, const std::string& option) {
  if (!a.has(option)) return std::nullopt;
  const auto t = parse_dtype(a.text(option));
  if (t && is_floating(*t)) return t;
  a.report(option, fmt::format("\"{}\" is no floating-point dtype", a.text(option)),
           "allowed: fp32, bf16, fp16, ...");
  return std::nullopt;
}

void read_precision(Arguments& a, ParallelConfig& c) {
  if (const auto t = read_dtype(a, "model-dtype")) c.model_dtype = *t;
  if (const auto t = read_dtype(a, "param-dtype")) c.precision.param = t;
  if (const auto t = read_dtype(a, "reduce-dtype")) c.precision.reduce = t;
  c.autocast = a.yes_no("autocast", false);
}

/// DDP and plain training keep whole parameters in their own dtype and reduce in it; another dtype
/// of compute is autocast's.
void read_whole_precision(Arguments& a, ParallelConfig& c) {
  if (c.framework != FrameworkKind::kDdp && c.framework != FrameworkKind::kUnsharded) return;
  if (a.yes_no("ddp-mixed-precision", false)) {
    c.ddp.mixed_precision = MixedPrecision{};
    c.ddp.mixed_precision->param = c.precision.param;
    if (a.has("reduce-dtype")) c.ddp.mixed_precision->reduce = c.precision.reduce;
    if (c.autocast) a.report("autocast", "is not for mixed precision of DDP's own", "one of them");
    c.precision.param = c.precision.reduce = c.model_dtype;
    return;
  }
  if (!a.has("param-dtype") && c.model_dtype != DType::kFloat32) c.precision.param = c.model_dtype;
  c.autocast = c.model_dtype == DType::kFloat32 && c.precision.param == DType::kBFloat16;
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
  c.sequence = a.integer("seq", c.sequence, 1, kMostTokens);
  c.accumulate = a.integer("accumulate", 1, 1, 1 << 16);
  c.sync_each_micro_batch = a.yes_no("sync-each-micro-batch", true);
  read_precision(a, c);
  read_whole_precision(a, c);
  read_checkpoint(a, c);
  const std::string optimizer = a.text("optimizer", "adamw");
  c.optimizer = optimizer == "adamw-foreach"    ? OptimizerKind::kAdamWForeach
                : optimizer == "adamw-for-loop" ? OptimizerKind::kAdamWForLoop
                : optimizer == "sgd"            ? OptimizerKind::kSgd
                                                : OptimizerKind::kAdamWFused;
  c.clip = a.yes_no("clip", true);
  c.compile = a.yes_no("compile", false);
  c.float8 = choose(a, "float8", Float8Kind::kNone,
                    {"none", "tensorwise", "rowwise", "rowwise-gw-hp", "delayed"});
  c.float8_all_gather = a.yes_no("float8-all-gather", false);
  c.attention = choose(a, "attention", AttentionKind::kFlash, {"flash", "sdpa", "math"});
  c.loss =
      choose(a, "loss", LossKind::kCrossEntropyFloat, {"float32", "plain", "chunked", "fused"});
  c.offload = choose(a, "offload", OffloadKind::kNone, {"none", "params", "optimizer", "both"});
}

void read_fsdp1(Arguments& a, std::int64_t replicate, Fsdp1Options& o) {
  using Strategy = Fsdp1Options::Strategy;
  o.strategy = replicate > 1 ? Strategy::kHybrid : Strategy::kFullShard;
  o.strategy =
      choose(a, "fsdp1-strategy", o.strategy,
             {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"});
  using Policy = Fsdp1Options::Policy;
  constexpr Policy policies[] = {Policy::kFromWrap, Policy::kModuleClass, Policy::kTransformer,
                                 Policy::kAlways};
  o.policy =
      policies[choose(a, "fsdp1-policy", 0, {"lambda", "module_class", "transformer", "always"})];
  if (a.has("fsdp1-ignored-modules"))
    o.ignored_modules = split_names(a.text("fsdp1-ignored-modules"));
  o.backward_prefetch = choose(a, "fsdp1-backward-prefetch", o.backward_prefetch,
                               {"backward_pre", "backward_post", "none"});
  o.forward_prefetch = a.yes_no("fsdp1-forward-prefetch", o.forward_prefetch);
  o.limit_all_gathers = a.yes_no("fsdp1-limit-all-gathers", o.limit_all_gathers);
  o.use_orig_params = a.yes_no("fsdp1-use-orig-params", o.use_orig_params);
  o.keep_low_precision_grads =
      a.yes_no("fsdp1-keep-low-precision-grads", o.keep_low_precision_grads);
}

void read_zero(Arguments& a, ZeroOptions& o) {
  const auto elements = [&a](const std::string& name, std::int64_t& value) {
    if (a.text(name) == "auto") return;  // Known once the model is: resolve_auto.
    value = static_cast<std::int64_t>(
        a.number(name, static_cast<double>(value), 0, static_cast<double>(kMostElements)));
  };
  elements("zero-reduce-bucket-size", o.reduce_bucket_size);
  elements("zero-allgather-bucket-size", o.allgather_bucket_size);
  elements("zero-prefetch-bucket-size", o.prefetch_bucket_size);
  elements("zero-param-persistence-threshold", o.param_persistence_threshold);
  elements("zero-model-persistence-threshold", o.model_persistence_threshold);
  elements("zero-max-live-parameters", o.max_live_parameters);
  elements("zero-max-reuse-distance", o.max_reuse_distance);
  elements("zero-sub-group-size", o.sub_group_size);
  elements("zero-module-granularity", o.module_granularity_threshold);
  o.hpz_partition_size = a.integer("zero-hpz-partition-size", o.hpz_partition_size, 1, kMostGpus);
  if (a.has("zero-overlap-comm")) o.overlap_comm = a.yes_no("zero-overlap-comm", true);
  o.contiguous_gradients = a.yes_no("zero-contiguous-gradients", o.contiguous_gradients);
  o.reduce_scatter = a.yes_no("zero-reduce-scatter", o.reduce_scatter);
  o.round_robin_gradients = a.yes_no("zero-round-robin-gradients", o.round_robin_gradients);
  o.multi_rank_all_reduce = a.yes_no("zero-multi-rank-allreduce", o.multi_rank_all_reduce);
  o.pin_memory = a.yes_no("zero-pin-memory", o.pin_memory);
  o.partitioned_construction = a.yes_no("zero-init", true);
  o.offload_ratio = a.number("zero-offload-ratio", o.offload_ratio, 0, 1);
  o.throughput_timer = a.yes_no("zero-throughput-timer", o.throughput_timer);
  o.wall_clock_breakdown = a.yes_no("zero-wall-clock-breakdown", o.wall_clock_breakdown);
  o.leaf_classes = a.list("zero-leaf-classes");
  if (const auto t = read_dtype(a, "zero-grad-accum-dtype")) o.grad_accum_dtype = t;
  if (const auto t = read_dtype(a, "reduce-dtype")) o.communication_dtype = t;
}

/// Width of the model as trainers take it for "auto": columns of the token embedding (DS-AUTO).
std::int64_t hidden_size(const Model& model) {
  std::int64_t width = 0;
  for (const ModuleId m : model.roles.embeddings) {
    for (const OwnedParameter& p : model.at(m).parameters) {
      const auto& shape = model.at(p.id).shape;
      if (shape.size() == 2) width = std::max(width, shape[1]);
    }
  }
  return width;
}

/// Values that a trainer fills in from the model (transformers: trainer_config_finalize;
/// accelerate: _prepare_deepspeed).
void resolve_auto(Arguments& a, const Model& model, ZeroOptions& o) {
  const std::int64_t h = hidden_size(model);
  const auto fill = [&](const char* name, std::int64_t& value, std::int64_t resolved) {
    if (a.text(name) != "auto") return;
    if (h == 0) a.report(name, "\"auto\" needs a model with an embedding", "a number of elements");
    value = resolved;
  };
  fill("zero-reduce-bucket-size", o.reduce_bucket_size, h * h);
  fill("zero-prefetch-bucket-size", o.prefetch_bucket_size,
       static_cast<std::int64_t>(0.9 * static_cast<double>(h * h)));
  fill("zero-param-persistence-threshold", o.param_persistence_threshold, 10 * h);
}

void read_ddp(Arguments& a, DdpOptions& o) {
  if (a.has("ddp-bucket-cap-mb")) o.bucket_cap_mib = a.number("ddp-bucket-cap-mb", 25, 1e-3, 1e6);
  o.gradient_as_bucket_view = a.yes_no("ddp-gradient-as-bucket-view", o.gradient_as_bucket_view);
  o.static_graph = a.yes_no("ddp-static-graph", o.static_graph);
  o.find_unused_parameters = a.yes_no("ddp-find-unused-parameters", o.find_unused_parameters);
  o.broadcast_buffers = a.yes_no("ddp-broadcast-buffers", o.broadcast_buffers);
  o.batched_grad_copy = a.yes_no("ddp-batched-grad-copy", o.batched_grad_copy);
  o.comm_hook =
      choose(a, "ddp-comm-hook", o.comm_hook, {"none", "allreduce", "bf16", "fp16", "powersgd"});
  o.power_sgd.rank = a.integer("ddp-powersgd-rank", o.power_sgd.rank, 1, 4096);
  o.power_sgd.min_compression_rate =
      a.number("ddp-powersgd-min-compression", o.power_sgd.min_compression_rate, 1e-3, 1e6);
  o.power_sgd.error_feedback = a.yes_no("ddp-powersgd-error-feedback", o.power_sgd.error_feedback);
  o.power_sgd.warm_start = a.yes_no("ddp-powersgd-warm-start", o.power_sgd.warm_start);
  o.lazy_bucket_allocation = a.yes_no("ddp-lazy-buckets", o.lazy_bucket_allocation);
  o.skip_all_reduce_unused = a.yes_no("ddp-skip-unused", o.skip_all_reduce_unused);
  for (const std::string& text : a.list("ddp-bucket-cap-mb-list")) {
    double mib = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mib);
    if (error != std::errc() || end != text.data() + text.size() || !(mib > 0 && mib < 1e6)) {
      a.report("ddp-bucket-cap-mb-list", fmt::format("\"{}\" is not a size in MiB", text),
               "e.g. 1,25,100");
    } else {
      o.bucket_cap_mib_list.push_back(mib);
    }
  }
}

void read_sharded_optimizer(Arguments& a, ShardedOptimizerOptions& o) {
  o.bucket_mib = a.number("sharded-bucket-mb", o.bucket_mib, 1e-3, 1e6);
  o.accumulate_in_float32 = a.yes_no("sharded-float32-sums", o.accumulate_in_float32);
  o.one_collective_per_tensor = a.yes_no("sharded-per-tensor", o.one_collective_per_tensor);
  o.reduce_scatter = a.yes_no("sharded-reduce-scatter", o.reduce_scatter);
  o.owners_broadcast = a.yes_no("sharded-owners-broadcast", o.owners_broadcast);
  if (o.reduce_scatter && !o.one_collective_per_tensor)
    a.report("sharded-reduce-scatter", "scatters tensor by tensor",
             "also --sharded-per-tensor yes");
}

/// World = shard x replicate; what is not given follows from the number of GPUs.
void read_mesh(Arguments& a, Job& job) {
  ParallelConfig& c = job.config;
  const bool whole_copies =
      c.framework == FrameworkKind::kDdp || c.framework == FrameworkKind::kUnsharded;
  const std::int64_t gpus = job.gpus;
  if (whole_copies) {
    if (c.framework == FrameworkKind::kUnsharded && gpus != 1)
      a.report("framework", fmt::format("none trains on one GPU, found --gpus {}", gpus),
               "allowed: --gpus 1, or ddp");
    c.shard = 1;
    c.replicate = gpus;
    return;
  }
  const bool has_shard = a.has("shard"), has_replicate = a.has("replicate");
  c.shard = a.integer("shard", 1, 1, kMostGpus);
  c.replicate = a.integer("replicate", 1, 1, kMostGpus);
  if (!has_shard && gpus % c.replicate == 0)
    c.shard = gpus / c.replicate;
  else if (!has_replicate && has_shard && gpus % c.shard == 0)
    c.replicate = gpus / c.shard;
  if (c.shard * c.replicate != gpus)
    a.report(has_shard ? "shard" : "replicate",
             fmt::format("shard {} x replicate {} is not the {} GPUs", c.shard, c.replicate, gpus),
             "their product must be --gpus");
}

template <typename Read>
void guarded(Arguments& a, Read read) {
  try {
    read();
  } catch (const InputError& e) {
    a.report(e);
  }
}

}  // namespace

Job read_job(Arguments& a, const JobNeeds& needs) {
  Job job;
  ParallelConfig& c = job.config;
  c.framework = FrameworkKind::kFsdp2;
  const std::string framework = a.text("framework", "fsdp2");
  const std::vector<std::string> names{"none",  "ddp",   "fsdp2", "fsdp1",
                                       "zero1", "zero2", "zero3", "sharded-optimizer"};
  c.framework = choose(a, "framework", FrameworkKind::kFsdp2, names);
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
      choose(a, "attention-kernel", AttentionKernel::kFlash2, {"flash2", "flash1", "flash3"});
  read_fsdp1(a, c.replicate, c.fsdp1);
  read_zero(a, c.zero);
  read_ddp(a, c.ddp);
  read_sharded_optimizer(a, c.sharded_optimizer);
  if (needs.hardware && !a.has("on"))
    a.report("on", "is missing", "which machine? e.g. --on dgx-h100; foreshard hw lists them");
  if (needs.hardware && a.has("on"))
    guarded(a, [&] { job.hardware = load_hardware(a.text("on")); });
  if (a.positional(0).empty()) {
    a.report(InputError(
        Issue{"MODEL", "", "is empty",
              "a catalogue name (foreshard models lists them), a config.json or a graph file"}));
    return job;
  }
  guarded(a, [&] {
    Model model = load_model(with_adapters(a.positional(0), a));
    if (a.has("model-dtype")) model.set_dtype(c.model_dtype);
    resolve_auto(a, model, c.zero);
    job.model = std::make_shared<const Model>(std::move(model));
  });
  return job;
}

}  // namespace foreshard::cli
