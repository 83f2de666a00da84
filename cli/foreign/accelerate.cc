// Accelerate's configuration files: FSDP and FSDP2 as its plugin applies them, DDP, and DeepSpeed
// by its own file or by the few keys that Accelerate makes one of.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "cli/foreign/accelerate_keys.h"
#include "cli/foreign/deepspeed.h"
#include "core/json.h"
#include "core/text.h"
#include "hwprofiles/yaml_json.h"

namespace foreshard::cli::accelerate {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;

std::string fsdp(const char* key) { return std::string("fsdp_config.fsdp_") + key; }
std::string of_deepspeed(const char* key) { return std::string("deepspeed_config.") + key; }

struct Ranks {
  std::int64_t gpus = 0, nodes = 1;  ///< gpus 0: not said.
};

Ranks read_ranks(KeyReader& keys, std::int64_t asked) {
  const char* processes = "num_processes";
  const char* machines = "num_machines";
  Ranks r{keys.whole(processes, -1, kMostRanks).value_or(0),
          keys.whole(machines, 1, kMostRanks).value_or(1)};
  if (r.gpus < 0) r.gpus = 0;  // -1: the launcher asks for it.
  if (asked > 0) {
    keys.set("gpus", std::to_string(asked), "--gpus");
    keys.same(processes, "--gpus wins");
    r.gpus = asked;
  } else if (r.gpus > 0) {
    keys.set("gpus", std::to_string(r.gpus), processes);
  } else {
    keys.open("gpus", "", "accelerate launch --num_processes");
  }
  if (r.gpus > 0 && r.gpus % r.nodes != 0)
    keys.refuse(machines, fmt::format("{} machines do not divide {} processes", r.nodes, r.gpus));
  keys.same(processes, "left to the launcher");
  keys.same(machines, "the machine of --on says how many GPUs a node has");
  return r;
}

/// "bf16", "fp16", "no", or "" where the file does not say it.
std::string read_precision_key(KeyReader& keys) {
  const char* key = "mixed_precision";
  const auto kind = keys.choice(key, {"no", "fp16", "bf16", "fp8"});
  const bool old = keys.boolean("fp16").value_or(false);
  keys.same("fp16", keys.has(key) ? "mixed_precision says it" : "off");
  if (kind == "fp8")
    keys.refuse(key, "8-bit products of Accelerate's backends are not planned", "--float8 by hand");
  if (!kind && keys.has(key)) return "no";  // Reported.
  return kind ? *kind : old ? "fp16" : "";
}

// ----------------------------------------------------------------------------------------------
// FSDP

/// What Accelerate does around FSDP and DDP with mixed precision (accelerator.py: prepare_model):
/// parameters in fp32, forward under autocast, FSDP's own policy of one dtype for all.
void read_precision(KeyReader& keys, const std::string& kind, bool sharded) {
  const char* key = keys.has("mixed_precision") ? "mixed_precision" : "fp16";
  if (kind.empty())
    return keys.open("param-dtype", "bf16",
                     "mixed_precision of the script or of accelerate launch (bf16: also "
                     "autocast: yes and, with FSDP, reduce-dtype: bf16; none: fp32)");
  if (kind == "no") {
    keys.set("param-dtype", "fp32", key);
    if (sharded) keys.set("reduce-dtype", "fp32", key);
    if (!sharded) keys.set("autocast", "no", key);
    return;
  }
  if (!sharded && kind == "fp16")
    return keys.refuse(key, "autocast to fp16 is not planned without sharding", "bf16");
  keys.set("param-dtype", kind, key);
  if (sharded) keys.set("reduce-dtype", kind, key);
  keys.set("autocast", "yes", key);
  if (sharded) keys.set("model-dtype", "fp32", "Accelerate keeps trainable parameters in fp32");
  keys.not_modelled("outputs in fp32", "Accelerate casts the model's outputs (logits) to fp32");
  if (kind == "fp16") keys.not_modelled("gradient scaler", "unscaling and its check for overflow");
}

std::string joined(const std::vector<std::string>& names) {
  std::vector<std::string> trimmed;
  for (std::string name : names) {
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
    if (!name.empty()) trimmed.push_back(name);
  }
  return fmt::format("{}", fmt::join(trimmed, ","));
}

void read_wrap(KeyReader& keys, bool two) {
  const std::string policy = fsdp("auto_wrap_policy"),
                    classes = fsdp("transformer_layer_cls_to_wrap"), least = fsdp("min_num_params");
  const std::string kind =
      keys.choice(policy, {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"})
          .value_or("NO_WRAP");
  const std::string none = keys.has(policy) ? policy : policy + " is absent: NO_WRAP";
  const auto names = keys.words(classes);
  const auto size = keys.whole(least, 0, std::int64_t{1} << 50);
  if (kind == "NO_WRAP" || (kind == "SIZE_BASED_WRAP" && size == 0)) {
    keys.set("wrap", "root", none);
    if (two)
      keys.not_modelled("units of embedding and head",
                        "Accelerate makes units of them beside the root");
  } else if (kind == "SIZE_BASED_WRAP") {
    if (two)
      return keys.refuse(policy, "is planned with fsdp_version 1 only", "TRANSFORMER_BASED_WRAP");
    keys.set("wrap", fmt::format("size:{}", size.value_or(100'000'000)), policy);
  } else if (names && !two) {
    keys.set("wrap", "modules:" + joined(*names), classes);
    keys.set("fsdp1-policy", "transformer", policy);
  } else {
    keys.set("wrap", "blocks", policy);
    if (names)
      keys.not_modelled(classes,
                        "the class is taken for that of the model's blocks, beside which "
                        "embedding and head are units");
  }
  keys.same(policy, "as wrap says");
  keys.same(classes, "TRANSFORMER_BASED_WRAP only");
  keys.same(least, "SIZE_BASED_WRAP only");
}

void read_fsdp1_strategy(KeyReader& keys, const Ranks& ranks) {
  const std::string key = fsdp("sharding_strategy");
  // By number as torch.distributed.fsdp.ShardingStrategy counts them.
  const std::vector<std::string> names{"FULL_SHARD",   "SHARD_GRAD_OP",      "NO_SHARD",
                                       "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "_HYBRID_SHARD_ZERO2"};
  std::vector<std::string> allowed = names;
  for (const char* number : {"1", "2", "3", "4", "5"}) allowed.emplace_back(number);
  std::string name = keys.choice(key, allowed).value_or("FULL_SHARD");
  if (name.size() == 1) name = names[static_cast<std::size_t>(name[0] - '1')];
  std::string strategy = lower_case(name.front() == '_' ? name.substr(1) : name);
  if (strategy.rfind("hybrid", 0) == 0) {
    if (ranks.nodes > 1) {
      keys.set("replicate", std::to_string(ranks.nodes), "num_machines");
    } else {
      strategy = strategy == "hybrid_shard" ? "full_shard" : "shard_grad_op";
      keys.not_modelled("all-reduces of HYBRID_SHARD",
                        "on one machine (num_machines) they have one rank; on more: --replicate");
    }
  }
  keys.set("fsdp1-strategy", strategy, keys.has(key) ? key : key + " is absent: FULL_SHARD");
  keys.same(fsdp("reshard_after_forward"),
            "fsdp_sharding_strategy comes first with fsdp_version 1");
}

void read_fsdp1(KeyReader& keys, const Ranks& ranks) {
  read_fsdp1_strategy(keys, ranks);
  const std::string back = fsdp("backward_prefetch"), ahead = fsdp("forward_prefetch"),
                    orig = fsdp("use_orig_params");
  const std::string when =
      keys.choice(back, {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH", "1", "2"})
          .value_or("NO_PREFETCH");
  keys.set("fsdp1-backward-prefetch",
           when == "NO_PREFETCH" ? "none"
           : when == "1"         ? "backward_pre"
           : when == "2"         ? "backward_post"
                                 : lower_case(when),
           keys.has(back) ? back : back + " is absent: none");
  keys.set("fsdp1-forward-prefetch", yes_no(keys.boolean(ahead).value_or(false)),
           keys.has(ahead) ? ahead : ahead + " is absent: false");
  keys.set("fsdp1-use-orig-params", yes_no(keys.boolean(orig).value_or(true)),
           keys.has(orig) ? orig : orig + " is absent: true");
}

void read_fsdp2(KeyReader& keys) {
  const std::string reshard = fsdp("reshard_after_forward");
  keys.set("reshard", keys.boolean(reshard).value_or(true) ? "true" : "false",
           keys.has(reshard) ? reshard : reshard + " is absent: true");
  for (const char* key :
       {"sharding_strategy", "backward_prefetch", "forward_prefetch", "use_orig_params"})
    keys.same(fsdp(key), "fsdp_version 2 does not read it");
}

/// HSDP of FSDP2.
void read_parallelism(KeyReader& keys, bool two, const Ranks& ranks) {
  const std::string section = "parallelism_config.parallelism_config_";
  const std::string replicate = section + "dp_replicate_size", shard = section + "dp_shard_size";
  const std::int64_t copies = keys.whole(replicate, 1, kMostRanks).value_or(1),
                     parts = keys.whole(shard, 1, kMostRanks).value_or(0);
  if ((copies > 1 || parts > 1) && !two)
    keys.refuse(copies > 1 ? replicate : shard, "needs fsdp_version 2",
                "Accelerate stops here, too");
  if (two && copies > 1) keys.set("replicate", std::to_string(copies), replicate);
  if (two && parts > 1 && ranks.gpus > 0 && copies * parts != ranks.gpus)
    keys.refuse(shard, fmt::format("{} x {} are not the {} GPUs", copies, parts, ranks.gpus));
  else if (two && parts > 1)
    keys.set("shard", std::to_string(parts), shard);
  for (const std::string& key : {replicate, shard}) keys.same(key, "as by default");
}

void read_fsdp(KeyReader& keys, const Ranks& ranks, const std::string& precision) {
  const std::string version = fsdp("version"), ac = fsdp("activation_checkpointing"),
                    offload = fsdp("offload_params");
  const bool two = keys.choice(version, {"1", "2"}).value_or("1") == "2";
  keys.set("framework", two ? "fsdp2" : "fsdp1",
           keys.has(version) ? version : version + " is absent: 1");
  keys.same("distributed_type", "FSDP");
  two ? read_fsdp2(keys) : read_fsdp1(keys, ranks);
  read_wrap(keys, two);
  read_precision(keys, precision, true);
  read_parallelism(keys, two, ranks);
  if (keys.boolean(offload).value_or(false)) keys.set("offload", "params", offload);
  keys.same(offload, "off");
  if (keys.boolean(ac).value_or(false)) {
    keys.set("checkpoint", "full", ac);
    // fsdp2_apply_ac wraps before it shards; FSDP1 is wrapped first.
    keys.set("checkpoint-outside-units", yes_no(two), ac);
  } else {
    keys.same(ac, "off; the script may recompute by itself");
    keys.open("checkpoint", "none", "gradient_checkpointing of the trainer: full");
  }
}

// ----------------------------------------------------------------------------------------------
// DeepSpeed

/// Keys of a section that the chosen type does not read.
void leave(KeyReader& keys, std::string_view section, const char* why) {
  for (const KeyRow& row : key_table())
    if (row.rule == KeyRule::kTaken && row.key.substr(0, section.size()) == section)
      keys.same(row.key, why);
}

/// The file that Accelerate's plugin makes of its own keys (DeepSpeedPlugin.__post_init__).
Json plugin_file(KeyReader& keys, const std::string& precision) {
  const auto device = [&](const char* key) {
    return keys.choice(of_deepspeed(key), {"none", "cpu", "nvme"}).value_or("none");
  };
  const std::string steps = of_deepspeed("gradient_accumulation_steps"),
                    clipping = of_deepspeed("gradient_clipping");
  Json file = {{"train_batch_size", "auto"},
               {"train_micro_batch_size_per_gpu", "auto"},
               {"gradient_accumulation_steps", "auto"},
               {"gradient_clipping", "auto"},
               {"zero_optimization",
                {{"stage", keys.whole(of_deepspeed("zero_stage"), 0, 3).value_or(2)},
                 {"offload_optimizer", {{"device", device("offload_optimizer_device")}}},
                 {"offload_param", {{"device", device("offload_param_device")}}}}}};
  if (const auto n = keys.whole(steps, 1, 1 << 16)) file["gradient_accumulation_steps"] = *n;
  if (const auto norm = keys.number(clipping, 0, 1e30)) file["gradient_clipping"] = *norm;
  if (precision.empty())
    file["bf16"] = {{"enabled", "auto"}};
  else if (precision != "no")
    file[precision] = {{"enabled", true}};
  return file;
}

/// Keys that may not stand beside a file of DeepSpeed (_deepspeed_config_checks).
void refuse_beside_file(KeyReader& keys) {
  for (const std::string& key :
       {of_deepspeed("zero_stage"), of_deepspeed("offload_optimizer_device"),
        of_deepspeed("offload_param_device"), of_deepspeed("gradient_accumulation_steps"),
        of_deepspeed("gradient_clipping"), std::string("mixed_precision")})
    if (keys.has(key))
      keys.refuse(key, "stands beside deepspeed_config_file",
                  "Accelerate stops here, too: say it in that file");
}

std::filesystem::path beside(const std::string& config, const std::string& named) {
  const std::filesystem::path near = std::filesystem::path(config).parent_path() / named;
  std::error_code error;
  return std::filesystem::exists(near, error) ? near : std::filesystem::path(named);
}

/// Options of the inner job, but those that Accelerate's own keys decide.
void take_over(ForeignJob& job, const ForeignJob& inner, const std::vector<std::string>& decided) {
  const auto is_decided = [&](const std::string& option) {
    return std::find(decided.begin(), decided.end(), option) != decided.end();
  };
  for (const JobSetting& s : inner.settings)
    if (!is_decided(s.option)) job.settings.push_back(s);
  for (const OpenSetting& o : inner.open)
    if (!is_decided(o.option)) job.open.push_back(o);
  job.keys.insert(job.keys.end(), inner.keys.begin(), inner.keys.end());
}

void read_deepspeed(KeyReader& keys, const Ranks& ranks, const std::string& precision,
                    ForeignJob& job, IssueList& issues) {
  const std::string file = of_deepspeed("deepspeed_config_file"),
                    init = of_deepspeed("zero3_init_flag"),
                    experts = of_deepspeed("deepspeed_moe_layer_cls_names");
  ForeignJob inner;
  inner.program = "DeepSpeed 0.19.8";
  std::vector<Issue> found;
  std::vector<std::string> decided{"gpus"};
  if (const auto named = keys.word(file)) {
    refuse_beside_file(keys);
    const std::string path = beside(job.file, *named).string();
    try {
      inner = import_deepspeed(read_text_file(path), path, ranks.gpus);
    } catch (const InputError& e) {
      found = e.issues();
    }
  } else {
    IssueList inline_issues(job.file + ": deepspeed_config");
    deepspeed::read(plugin_file(keys, precision), ranks.gpus, inner, inline_issues);
    found = inline_issues.issues();
    std::erase_if(inner.keys,
                  [](const ForeignKey& k) { return k.becomes != Becomes::kNotModelled; });
  }
  for (const Issue& i : found)
    issues.add(i.path.empty() ? i.file : i.file + ": " + i.path, i.message, i.hint);
  const bool stage3 = std::any_of(inner.settings.begin(), inner.settings.end(),
                                  [](const JobSetting& s) { return s.value == "zero3"; });
  if (const auto on = keys.boolean(init); on && stage3) {
    keys.set("zero-init", yes_no(*on), init);
    decided.emplace_back("zero-init");
  }
  if (const auto names = keys.words(experts); names && stage3) {
    keys.set("zero-leaf-classes", joined(*names), experts);
    decided.emplace_back("zero-leaf-classes");
  }
  take_over(job, inner, decided);
  leave(keys, "deepspeed_config.", "as the options of DeepSpeed say");
  for (const char* key : {"distributed_type", "mixed_precision"})
    keys.same(key, "as the options of DeepSpeed say");
}

// ----------------------------------------------------------------------------------------------
// the rest

/// state.py: without mixed precision Accelerate allows TF32 beside a compiler.
void read_compile(KeyReader& keys, const std::string& precision) {
  const char* key = keys.has("dynamo_backend") ? "dynamo_backend" : "dynamo_config.dynamo_backend";
  const char* regional = "dynamo_config.dynamo_use_regional_compilation";
  const std::string backend =
      keys.choice(key,
                  {"NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER",
                   "CUDAGRAPHS", "OFI", "FX2TRT", "ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE",
                   "TORCHXLA_TRACE_ONCE", "IPEX", "TVM", "HPU_BACKEND"})
          .value_or("NO");
  if (backend == "INDUCTOR") {
    keys.set("compile", "yes", key);
    if (precision == "no") keys.set("tf32", "yes", key);
    if (!keys.boolean(regional).value_or(false))
      keys.not_modelled("compilation of the whole model",
                        "head, loss and embedding; the blocks are planned");
  } else if (backend != "NO") {
    keys.refuse(key, fmt::format("{} is not planned", backend), "INDUCTOR");
  }
  for (const char* one : {"dynamo_backend", "dynamo_config.dynamo_backend", regional})
    keys.same(one, "off");
}

void leave_open(KeyReader& keys) {
  keys.open("micro-batch", "1", "per_device_train_batch_size of the trainer");
  keys.open("accumulate", "1", "gradient_accumulation_steps of the script");
  keys.open("seq", "2048", "the script's sequence length");
  keys.open("optimizer", "adamw", "the script's optimizer, or the trainer's --optim");
  keys.open("clip", "yes", "max_grad_norm of the trainer (1.0 unless set)");
}

void read_type(KeyReader& keys, const Ranks& ranks, const std::string& precision, ForeignJob& job,
               IssueList& issues) {
  const char* key = "distributed_type";
  const std::vector<std::string> known{"NO",           "MULTI_GPU",  "FSDP",       "DEEPSPEED",
                                       "MEGATRON_LM",  "MULTI_CPU",  "MULTI_XPU",  "MULTI_NPU",
                                       "MULTI_MLU",    "MULTI_SDAA", "MULTI_MUSA", "MULTI_HPU",
                                       "MULTI_NEURON", "XLA",        "TPU"};
  const auto type = keys.choice(key, known);
  if (!keys.has(key)) return keys.refuse(key, "is missing", "Accelerate stops here, too");
  if (type == "DEEPSPEED") {
    read_deepspeed(keys, ranks, precision, job, issues);
    leave(keys, "parallelism_config.", "FSDP only");
    return leave(keys, "fsdp_config.", "FSDP only");
  }
  leave(keys, "deepspeed_config.", "DeepSpeed only");
  leave_open(keys);
  if (type == "FSDP") {
    keys.set("sync-each-micro-batch", "no", "Accelerate reduces at the last micro-batch");
    return read_fsdp(keys, ranks, precision);
  }
  leave(keys, "fsdp_config.", "FSDP only");
  leave(keys, "parallelism_config.", "FSDP only");
  keys.open("checkpoint", "none", "gradient_checkpointing of the trainer: full");
  if (type == "MULTI_GPU") {
    keys.set("framework", "ddp", key);
    keys.set("sync-each-micro-batch", "no", "Accelerate reduces at the last micro-batch");
    read_precision(keys, precision, false);
  } else if (type == "NO") {
    keys.set("framework", "none", key);
    read_precision(keys, precision, false);
  } else if (type) {
    keys.refuse(key, fmt::format("{} is not planned", *type), "FSDP, DEEPSPEED, MULTI_GPU or NO");
  }
}

}  // namespace

void read(const Json& file, std::int64_t gpus, ForeignJob& job, IssueList& issues) {
  KeyReader keys(file, key_table(), other_names(), job, issues);
  const Json* type = keys.find("distributed_type");
  const bool alone = type != nullptr && *type == "NO";
  const Ranks ranks = read_ranks(keys, gpus == 0 && alone && !keys.has("num_processes") ? 1 : gpus);
  const std::string precision = read_precision_key(keys);
  read_type(keys, ranks, precision, job, issues);
  read_compile(keys, precision);
  keys.finish();
}

}  // namespace foreshard::cli::accelerate

namespace foreshard::cli {

ForeignJob import_accelerate(std::string_view text, const std::string& file, std::int64_t gpus) {
  ForeignJob job;
  job.program = "Accelerate 1.15";
  job.file = file;
  IssueList issues(file);
  accelerate::read(file.ends_with(".json") ? parse_json(text, file) : parse_yaml(text, file), gpus,
                   job, issues);
  issues.throw_if_any();
  return job;
}

}  // namespace foreshard::cli
