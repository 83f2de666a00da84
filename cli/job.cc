#include <fmt/format.h>

#include <charconv>

#include "cli/job_options.h"
#include "models/load_model.h"

namespace foreshard::cli {
namespace {

constexpr std::int64_t kMostGpus = 1 << 20, kMostTokens = 1 << 26, kMostElements = std::int64_t{1} << 50;

/// Position of the chosen name in a list that is in the order of an enumeration.
template <typename Enum>
Enum choose(const Arguments& a, const std::string& option, Enum fallback, const std::vector<std::string>& names) {
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

void read_wrap(Arguments& a, WrapPolicy& wrap) {
  using K = WrapPolicy::Kind;
  const std::string text = a.text("wrap", "blocks");
  wrap.root_split = a.yes_no("root-split", true);
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
    for (std::size_t at = 8; at < text.size();) {
      const std::size_t comma = std::min(text.find(',', at), text.size());
      if (comma > at) wrap.modules.push_back(text.substr(at, comma - at));
      at = comma + 1;
    }
  } else {
    a.report("wrap", fmt::format("found \"{}\"", text), "allowed: blocks, every:K, root, size:N, modules:a,b,c");
  }
}

void read_reshard(Arguments& a, Reshard& reshard) {
  if (!a.has("reshard")) return;
  const std::string text = a.text("reshard");
  if (text == "true" || text == "yes") reshard = Reshard::yes();
  else if (text == "false" || text == "no") reshard = Reshard::no();
  else if (const auto n = number_after(text, "")) reshard = Reshard::to_group(*n);
  else a.report("reshard", fmt::format("found \"{}\"", text), "allowed: true, false, or a number of ranks");
}

void read_checkpoint(Arguments& a, ParallelConfig& c) {
  const std::string text = a.text("checkpoint", "none");
  if (text == "none") c.checkpoint = CheckpointKind::kNone;
  else if (text == "full") c.checkpoint = CheckpointKind::kFull;
  else if (text == "selective") c.checkpoint = CheckpointKind::kSelectiveOp;
  else if (const auto k = number_after(text, "every:")) c.checkpoint = CheckpointKind::kEveryK, c.checkpoint_every = *k;
  else a.report("checkpoint", fmt::format("found \"{}\"", text), "allowed: none, full, every:K, selective");
}

std::optional<DType> read_dtype(Arguments& a, const std::string& option) {
  if (!a.has(option)) return std::nullopt;
  const auto t = parse_dtype(a.text(option));
  if (t && is_floating(*t)) return t;
  a.report(option, fmt::format("\"{}\" is no floating-point dtype", a.text(option)), "allowed: fp32, bf16, fp16, ...");
  return std::nullopt;
}

void read_precision(Arguments& a, ParallelConfig& c) {
  if (const auto t = read_dtype(a, "model-dtype")) c.model_dtype = *t;
  if (const auto t = read_dtype(a, "param-dtype")) c.precision.param = t;
  if (const auto t = read_dtype(a, "reduce-dtype")) c.precision.reduce = t;
  c.autocast = a.yes_no("autocast", false);
}

void read_training(Arguments& a, ParallelConfig& c) {
  c.micro_batch = a.integer("micro-batch", c.micro_batch, 1, 1 << 20);
  c.sequence = a.integer("seq", c.sequence, 1, kMostTokens);
  c.accumulate = a.integer("accumulate", 1, 1, 1 << 16);
  c.sync_each_micro_batch = a.yes_no("sync-each-micro-batch", true);
  read_precision(a, c);
  read_checkpoint(a, c);
  const std::string optimizer = a.text("optimizer", "adamw");
  c.optimizer = optimizer == "adamw-foreach"    ? OptimizerKind::kAdamWForeach
                : optimizer == "adamw-for-loop" ? OptimizerKind::kAdamWForLoop
                : optimizer == "sgd"            ? OptimizerKind::kSgd
                                                : OptimizerKind::kAdamWFused;
  c.clip = a.yes_no("clip", true);
  c.compile = a.yes_no("compile", false);
  c.float8 = choose(a, "float8", Float8Kind::kNone, {"none", "tensorwise", "rowwise", "rowwise-gw-hp", "delayed"});
  c.float8_all_gather = a.yes_no("float8-all-gather", false);
  c.attention = choose(a, "attention", AttentionKind::kFlash, {"flash", "sdpa", "math"});
  c.loss = choose(a, "loss", LossKind::kCrossEntropyFloat, {"float32", "plain", "chunked", "fused"});
  c.offload = choose(a, "offload", OffloadKind::kNone, {"none", "params", "optimizer"});
}

void read_fsdp1(Arguments& a, Fsdp1Options& o) {
  o.strategy = choose(a, "fsdp1-strategy", o.strategy,
                      {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"});
  o.backward_prefetch = choose(a, "fsdp1-backward-prefetch", o.backward_prefetch, {"backward_pre", "backward_post", "none"});
  o.forward_prefetch = a.yes_no("fsdp1-forward-prefetch", o.forward_prefetch);
  o.limit_all_gathers = a.yes_no("fsdp1-limit-all-gathers", o.limit_all_gathers);
  o.use_orig_params = a.yes_no("fsdp1-use-orig-params", o.use_orig_params);
}

void read_zero(Arguments& a, ZeroOptions& o) {
  const auto elements = [&a](const std::string& name, std::int64_t& value) {
    value = static_cast<std::int64_t>(a.number(name, static_cast<double>(value), 0, static_cast<double>(kMostElements)));
  };
  elements("zero-reduce-bucket-size", o.reduce_bucket_size);
  elements("zero-allgather-bucket-size", o.allgather_bucket_size);
  elements("zero-prefetch-bucket-size", o.prefetch_bucket_size);
  elements("zero-param-persistence-threshold", o.param_persistence_threshold);
  elements("zero-max-live-parameters", o.max_live_parameters);
  elements("zero-max-reuse-distance", o.max_reuse_distance);
  if (a.has("zero-overlap-comm")) o.overlap_comm = a.yes_no("zero-overlap-comm", true);
  o.contiguous_gradients = a.yes_no("zero-contiguous-gradients", o.contiguous_gradients);
}

void read_ddp(Arguments& a, DdpOptions& o) {
  if (a.has("ddp-bucket-cap-mb")) o.bucket_cap_mib = a.number("ddp-bucket-cap-mb", 25, 1e-3, 1e6);
  o.gradient_as_bucket_view = a.yes_no("ddp-gradient-as-bucket-view", o.gradient_as_bucket_view);
  o.static_graph = a.yes_no("ddp-static-graph", o.static_graph);
}

void read_sharded_optimizer(Arguments& a, ShardedOptimizerOptions& o) {
  o.bucket_mib = a.number("sharded-bucket-mb", o.bucket_mib, 1e-3, 1e6);
  o.accumulate_in_float32 = a.yes_no("sharded-float32-sums", o.accumulate_in_float32);
  o.one_collective_per_tensor = a.yes_no("sharded-per-tensor", o.one_collective_per_tensor);
  o.reduce_scatter = a.yes_no("sharded-reduce-scatter", o.reduce_scatter);
  o.owners_broadcast = a.yes_no("sharded-owners-broadcast", o.owners_broadcast);
  if (o.reduce_scatter && !o.one_collective_per_tensor)
    a.report("sharded-reduce-scatter", "scatters tensor by tensor", "also --sharded-per-tensor yes");
}

/// World = shard x replicate; what is not given follows from the number of GPUs.
void read_mesh(Arguments& a, Job& job) {
  ParallelConfig& c = job.config;
  const bool whole_copies = c.framework == FrameworkKind::kDdp || c.framework == FrameworkKind::kUnsharded;
  const std::int64_t gpus = job.gpus;
  if (whole_copies) {
    if (c.framework == FrameworkKind::kUnsharded && gpus != 1)
      a.report("framework", fmt::format("none trains on one GPU, found --gpus {}", gpus), "allowed: --gpus 1, or ddp");
    c.shard = 1;
    c.replicate = gpus;
    return;
  }
  const bool has_shard = a.has("shard"), has_replicate = a.has("replicate");
  c.shard = a.integer("shard", 1, 1, kMostGpus);
  c.replicate = a.integer("replicate", 1, 1, kMostGpus);
  if (!has_shard && gpus % c.replicate == 0) c.shard = gpus / c.replicate;
  else if (!has_replicate && has_shard && gpus % c.shard == 0) c.replicate = gpus / c.shard;
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
  const std::vector<std::string> names{"none", "ddp", "fsdp2", "fsdp1", "zero1", "zero2", "zero3", "sharded-optimizer"};
  c.framework = choose(a, "framework", FrameworkKind::kFsdp2, names);
  if (needs.gpus && !a.has("gpus")) a.report("gpus", "is missing", "how many GPUs? e.g. --gpus 8");
  if (needs.gpus) {
    job.gpus = a.integer("gpus", 1, 1, kMostGpus);
    read_mesh(a, job);
  } else {
    c.shard = a.integer("shard", 1, 1, kMostGpus);
    c.replicate = a.integer("replicate", 1, 1, kMostGpus);
  }
  read_wrap(a, c.wrap);
  read_reshard(a, c.reshard);
  if (a.has("prefetch-forward")) c.prefetch_forward = a.integer("prefetch-forward", 0, 0, 1000);
  if (a.has("prefetch-backward")) c.prefetch_backward = a.integer("prefetch-backward", 0, 0, 1000);
  read_training(a, c);
  read_fsdp1(a, c.fsdp1);
  read_zero(a, c.zero);
  read_ddp(a, c.ddp);
  read_sharded_optimizer(a, c.sharded_optimizer);
  if (needs.hardware && !a.has("on")) a.report("on", "is missing", "which machine? e.g. --on dgx-h100; foreshard hw lists them");
  if (needs.hardware && a.has("on")) guarded(a, [&] { job.hardware = load_hardware(a.text("on")); });
  if (a.positional(0).empty()) {
    a.report(InputError(Issue{"MODEL", "", "is empty", "a catalogue name (foreshard models lists them), a config.json or a graph file"}));
    return job;
  }
  guarded(a, [&] {
    Model model = load_model(a.positional(0));
    if (a.has("model-dtype")) {
      for (ParameterDef& p : model.parameters) p.dtype = c.model_dtype;
    }
    job.model = std::make_shared<const Model>(std::move(model));
  });
  return job;
}

}  // namespace foreshard::cli
