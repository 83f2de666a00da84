#include "cli/foreign/deepspeed.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/foreign/deepspeed_keys.h"
#include "core/json.h"
#include "core/text.h"

namespace foreshard::cli::deepspeed {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 50;

/// A key of zero_optimization that is an option under another name.
struct ZeroKey {
  std::string_view key, option;
  enum Kind : std::uint8_t { kElements, kModelElements, kYesNo } kind;
  std::string_view stages;  ///< Those that act on it.
  std::int64_t least = 0;
};

/// kModelElements: trainers fill "auto" from the model's width, as our option of that name does.
constexpr ZeroKey kZeroKeys[] = {
    {"reduce_bucket_size", "zero-reduce-bucket-size", ZeroKey::kModelElements, "123", 1},
    {"allgather_bucket_size", "zero-allgather-bucket-size", ZeroKey::kElements, "12"},
    {"stage3_prefetch_bucket_size", "zero-prefetch-bucket-size", ZeroKey::kModelElements, "3"},
    {"stage3_param_persistence_threshold", "zero-param-persistence-threshold",
     ZeroKey::kModelElements, "3"},
    {"stage3_model_persistence_threshold", "zero-model-persistence-threshold", ZeroKey::kElements,
     "3"},
    {"stage3_max_live_parameters", "zero-max-live-parameters", ZeroKey::kElements, "3"},
    {"stage3_max_reuse_distance", "zero-max-reuse-distance", ZeroKey::kElements, "3"},
    {"stage3_module_granularity_threshold", "zero-module-granularity", ZeroKey::kElements, "3"},
    {"sub_group_size", "zero-sub-group-size", ZeroKey::kElements, "3"},
    {"zero_hpz_partition_size", "zero-hpz-partition-size", ZeroKey::kElements, "3", 1},
    {"overlap_comm", "zero-overlap-comm", ZeroKey::kYesNo, "123"},
    {"contiguous_gradients", "zero-contiguous-gradients", ZeroKey::kYesNo, "123"},
    {"reduce_scatter", "zero-reduce-scatter", ZeroKey::kYesNo, "123"},
    {"round_robin_gradients", "zero-round-robin-gradients", ZeroKey::kYesNo, "12"},
    {"use_multi_rank_bucket_allreduce", "zero-multi-rank-allreduce", ZeroKey::kYesNo, "12"},
    {"zero_quantized_weights", "zero-quantized-weights", ZeroKey::kYesNo, "3"},
    {"zero_quantized_gradients", "zero-quantized-gradients", ZeroKey::kYesNo, "3"},
};

/// Classes that DeepSpeed 0.19.8 fetches as a whole unless the file says otherwise
/// (zero/leaf_module_config.py: DEFAULT_LEAF_MODULE_CLASSES).
constexpr const char* kDefaultLeaves =
    "MixtralSparseMoeBlock,Qwen2MoeSparseMoeBlock,Qwen3MoeSparseMoeBlock";

std::string in_zero(std::string_view key) { return "zero_optimization." + std::string(key); }

void read_zero_key(KeyReader& keys, const ZeroKey& z, int stage) {
  const std::string key = in_zero(z.key), option(z.option);
  if (!keys.has(key)) return;
  if (!contains(z.stages, std::to_string(stage)))
    return keys.same(key, fmt::format("stage {} does not act on it", stage));
  if (keys.is_auto(key)) {
    if (z.kind == ZeroKey::kModelElements) return keys.set(option, "auto", key);
    return keys.same(key, "\"auto\": nobody fills it, DeepSpeed takes its default");
  }
  if (z.kind == ZeroKey::kYesNo) {
    if (const auto on = keys.boolean(key)) keys.set(option, yes_no(*on), key);
  } else if (const auto n = keys.whole(key, z.least, INT64_MAX)) {
    if (*n > kMostElements) return keys.same(key, "no limit, as by default");
    keys.set(option, std::to_string(*n), key);
  }
}

// ----------------------------------------------------------------------------------------------
// stage and offload

/// 0 where there is none that can be planned (reported).
int read_stage(KeyReader& keys) {
  const std::string key = in_zero("stage");
  if (keys.has(key) && !keys.is_auto(key)) {
    const auto stage = keys.whole(key, 0, 3);
    if (!stage) return 0;
    if (*stage > 0) {
      keys.set("framework", fmt::format("zero{}", *stage), key);
      return static_cast<int>(*stage);
    }
  }
  keys.refuse(key, "DeepSpeed without ZeRO (stage 0, the default) is not planned",
              "1, 2 or 3; without DeepSpeed: --framework ddp");
  return 0;
}

/// Where one kind of state lives. "none", "cpu"; "" where that was refused.
std::string device_of(KeyReader& keys, const std::string& section, const std::string& old) {
  const std::string key = section + ".device";
  if (keys.boolean(old).value_or(false)) {
    if (keys.has(key)) keys.refuse(old, "stands beside " + section, "one of them");
    return "cpu";
  }
  const std::string device = keys.choice(key, {"none", "cpu", "nvme"}).value_or("none");
  if (device != "nvme") return device;
  keys.refuse(key, "NVMe offload is not planned", "\"cpu\": host memory");
  return "";
}

/// Keys of a section whose states stay on the device.
void leave(KeyReader& keys, const std::string& section, const std::string& why) {
  for (const char* name : {".device", ".pin_memory", ".ratio"}) keys.same(section + name, why);
}

void read_pinning(KeyReader& keys, bool optimizer, bool parameters) {
  const std::string of_optimizer = in_zero("offload_optimizer.pin_memory"),
                    of_parameters = in_zero("offload_param.pin_memory");
  const auto pinned = [&](const std::string& key) { return keys.boolean(key).value_or(true); };
  const std::string& first = optimizer ? of_optimizer : of_parameters;
  keys.set("zero-pin-memory", yes_no(pinned(first)),
           keys.has(first) && !keys.is_auto(first) ? first : first + " is absent: true by default");
  if (keys.is_auto(first)) keys.same(first, "\"auto\": nobody fills it, DeepSpeed takes true");
  if (!optimizer || !parameters) return;
  if (pinned(of_parameters) == pinned(of_optimizer))
    keys.same(of_parameters, "as that of the optimizer");
  else
    keys.not_modelled(of_parameters, "planned as that of the optimizer: one option for both");
}

/// True if the optimizer's states are offloaded.
bool read_offload(KeyReader& keys, int stage) {
  const std::string optimizer = in_zero("offload_optimizer"), param = in_zero("offload_param");
  const std::string old_optimizer = in_zero("cpu_offload"),
                    old_param = in_zero("cpu_offload_param");
  const std::string of_optimizer = device_of(keys, optimizer, old_optimizer);
  std::string of_param = device_of(keys, param, old_param);
  if (of_param == "cpu" && stage < 3) {
    leave(keys, param, "stage 3 alone offloads parameters");
    keys.same(old_param, "stage 3 alone offloads parameters");
    of_param = "none";
  }
  const bool has_optimizer = of_optimizer == "cpu", has_param = of_param == "cpu";
  const auto source = [&](bool of_optimizer_state) {
    const std::string& old = of_optimizer_state ? old_optimizer : old_param;
    return keys.boolean(old).value_or(false) ? old
                                             : (of_optimizer_state ? optimizer : param) + ".device";
  };
  if (has_optimizer || has_param) {
    keys.set("offload", has_optimizer ? (has_param ? "both" : "optimizer") : "params",
             source(has_optimizer));
    if (has_optimizer && has_param) keys.same(source(false), "offload: both");
    read_pinning(keys, has_optimizer, has_param);
  }
  const std::string ratio = optimizer + ".ratio";
  if (const auto r = keys.number(ratio, 0, 1); r && has_optimizer) {
    if (stage == 3)
      keys.set("zero-offload-ratio", fmt::format("{}", *r), ratio);
    else if (*r < 1)
      keys.refuse(ratio, "a part of the optimizer is offloaded in stage 3 only", "1");
  }
  leave(keys, optimizer, "stays on the device, or as by default");
  leave(keys, param, "stays on the device, or as by default");
  for (const std::string& old : {old_optimizer, old_param}) keys.same(old, "off");
  return has_optimizer;
}

// ----------------------------------------------------------------------------------------------
// the rest

void read_leaves(KeyReader& keys, int stage) {
  const std::string key = in_zero("leaf_module.classes");
  if (stage != 3) return keys.same(key, fmt::format("stage {} does not act on it", stage));
  const auto classes = keys.words(key);
  if (keys.is_auto(key)) keys.same(key, "\"auto\": nobody fills it, DeepSpeed takes its default");
  if (!classes)
    return keys.set("zero-leaf-classes", kDefaultLeaves, key + " is absent: DeepSpeed's default");
  std::vector<std::string> names;
  for (const std::string& name : *classes) names.push_back(name.substr(name.rfind('.') + 1));
  if (names.empty()) return keys.same(key, "none");
  keys.set("zero-leaf-classes", fmt::format("{}", fmt::join(names, ",")), key);
}

void read_timers(KeyReader& keys) {
  const char* wall = "wall_clock_breakdown";
  const char* profiler = "flops_profiler.enabled";
  const bool profiled = keys.boolean(profiler).value_or(false);
  const bool timed = keys.boolean(wall).value_or(false);
  if (keys.has(wall) && !keys.is_auto(wall))
    keys.set("zero-wall-clock-breakdown", yes_no(timed || profiled), wall);
  else if (profiled)
    keys.set("zero-wall-clock-breakdown", "yes", profiler);
  keys.same(wall, "as by default");
  keys.same(profiler, profiled ? "switches wall_clock_breakdown on" : "off");
  const char* enabled = "timers.throughput.enabled";
  const char* synchronized = "timers.throughput.synchronized";
  const bool on = keys.boolean(enabled).value_or(true),
             waits = keys.boolean(synchronized).value_or(true);
  if (!on || !waits) keys.set("zero-throughput-timer", "no", on ? synchronized : enabled);
  for (const char* key : {enabled, synchronized}) keys.same(key, "as by default");
}

void read_clipping(KeyReader& keys) {
  const char* key = "gradient_clipping";
  if (keys.is_auto(key)) {
    keys.set("clip", "yes", key);
  } else if (!keys.has(key)) {
    keys.set("clip", "yes", "gradient_clipping is absent: 1.0 by default");
  } else if (const auto norm = keys.number(key, 0, 1e30)) {
    keys.set("clip", yes_no(*norm > 0), key);
  }
}

/// "zero_optimization": true, the oldest form (zero/config.py: read_zero_config_deprecated).
void expand_old_form(Json& config) {
  if (!config.is_object() || !config.contains("zero_optimization")) return;
  Json& zero = config["zero_optimization"];
  if (!zero.is_boolean()) return;
  Json sections = {{"stage", zero.get<bool>() ? 1 : 0}};
  if (config.contains("allgather_size"))
    sections["allgather_bucket_size"] = config["allgather_size"];
  zero = std::move(sections);
}

void leave_open(KeyReader& keys, int stage) {
  keys.open("seq", "2048", "the script's sequence length");
  keys.open("checkpoint", "none",
            "whether activations are recomputed: the script (gradient_checkpointing): full");
  if (stage == 3)
    keys.open("zero-init", "yes",
              "whether the script builds the model under deepspeed.zero.Init, as Hugging Face's "
              "from_pretrained does");
}

}  // namespace

void read(Json config, std::int64_t gpus, ForeignJob& job, IssueList& issues) {
  expand_old_form(config);
  KeyReader keys(config, key_table(), other_names(), job, issues, true);
  const int stage = read_stage(keys);
  read_batch(keys, gpus);
  read_precision(keys);
  keys.same("allgather_size", "allgather_bucket_size of \"zero_optimization\": true");
  for (const ZeroKey& z : kZeroKeys) read_zero_key(keys, z, stage);
  const bool offloaded = read_offload(keys, stage);
  read_leaves(keys, stage);
  read_optimizer(keys, offloaded);
  read_clipping(keys);
  read_timers(keys);
  leave_open(keys, stage);
  keys.finish();
}

}  // namespace foreshard::cli::deepspeed

namespace foreshard::cli {

ForeignJob import_deepspeed(std::string_view text, const std::string& file, std::int64_t gpus) {
  if (contains(text, "{%") || contains(text, "{{"))
    throw InputError(Issue{file, "", "is a template, not JSON yet", "fill it in first"});
  ForeignJob job;
  job.program = "DeepSpeed 0.19.8";
  job.file = file;
  IssueList issues(file);
  deepspeed::read(parse_json(text, file), gpus, job, issues);
  issues.throw_if_any();
  return job;
}

}  // namespace foreshard::cli
