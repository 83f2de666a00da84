// torchtitan's job files: FSDP2 of every block as torchtitan applies it (models/*/infra/
// parallelize.py), DDP where nothing is sharded.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "cli/foreign/toml_json.h"
#include "cli/foreign/torchtitan_keys.h"
#include "core/json.h"
#include "core/text.h"

namespace foreshard::cli::torchtitan {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;
constexpr std::int64_t kMostSequences = std::int64_t{1} << 40;

/// Sets an option from a key of whole numbers, or from torchtitan's default.
void set_whole(KeyReader& keys, const char* option, const char* key, std::int64_t otherwise) {
  if (const auto n = keys.whole(key, 1, 1 << 26))
    keys.set(option, std::to_string(*n), key);
  else if (!keys.has(key))
    keys.set(option, std::to_string(otherwise),
             fmt::format("{} is absent: {} by default", key, otherwise));
}

std::string by_default(const KeyReader& keys, const char* key, const std::string& value) {
  return keys.has(key) ? key : fmt::format("{} is absent: {} by default", key, value);
}

/// Flavors whose sizes are those of a model of the catalogue; "" for others.
std::string model_of(const std::string& name, const std::string& flavor) {
  for (const char* size : {"8B", "70B", "405B"})
    if (name == "llama3" && flavor == size) return "llama3.1-" + lower_case(flavor);
  for (const char* size : {"0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B"})
    if (name == "qwen3" && flavor == size) return "qwen3-" + lower_case(flavor);
  return "";
}

void read_model(KeyReader& keys) {
  const std::string name = keys.word("model.name").value_or("llama3"),
                    flavor = keys.word("model.flavor").value_or("debugmodel");
  const std::string model = model_of(name, flavor);
  if (model.empty())
    keys.open("model", "",
              fmt::format("{} {}: its config.json, or a model of the catalogue", name, flavor));
  else
    keys.set("model", model, "model.flavor");
  keys.same("model.name", model.empty() ? "leaves the model open" : "model: " + model);
  keys.same("model.flavor", "leaves the model open");
}

// ----------------------------------------------------------------------------------------------
// ranks

struct Mesh {
  std::int64_t replicate = 1, shard = -1;  ///< -1: the rest.
  std::int64_t gpus = 0;                   ///< 0: not said.
  bool sharded() const { return shard != 1; }
  bool copies() const { return !sharded() && replicate > 1; }
};

Mesh read_mesh(KeyReader& keys, std::int64_t gpus) {
  const char* replicate = "parallelism.data_parallel_replicate_degree";
  const char* shard = "parallelism.data_parallel_shard_degree";
  Mesh m{keys.whole(replicate, 1, kMostRanks).value_or(1),
         keys.whole(shard, -1, kMostRanks).value_or(-1), gpus};
  if (m.shard == 0) keys.refuse(shard, "found 0", "-1 (the rest) or a number of ranks");
  if (m.shard > 0 && m.gpus > 0 && m.replicate * m.shard != m.gpus)
    keys.refuse(shard, fmt::format("{} copies x {} ranks are not the {} GPUs", m.replicate, m.shard,
                                   m.gpus));
  if (m.shard < 0 && m.gpus > 0 && m.gpus % m.replicate != 0)
    keys.refuse(replicate, fmt::format("{} copies do not divide the {} GPUs", m.replicate, m.gpus));
  if (m.shard > 0) m.gpus = m.replicate * m.shard;
  if (m.shard < 0 && m.gpus > 0 && m.gpus == m.replicate) m.shard = 1;
  if (m.gpus > 0) keys.set("gpus", std::to_string(m.gpus), m.gpus == gpus ? "--gpus" : shard);
  keys.set("framework",
           m.sharded()  ? "fsdp2"
           : m.copies() ? "ddp"
                        : "none",
           by_default(keys, shard, "-1, the rest"));
  if (m.sharded() && m.replicate > 1) keys.set("replicate", std::to_string(m.replicate), replicate);
  if (m.copies()) keys.set("ddp-bucket-cap-mb", "100", "torchtitan's replicate()");
  keys.same(replicate, m.copies() ? "each GPU holds a copy" : "no copies");
  return m;
}

void read_reshard(KeyReader& keys, const Mesh& mesh) {
  const char* key = "parallelism.fsdp_reshard_after_forward";
  const std::string policy = keys.choice(key, {"default", "always", "never"}).value_or("default");
  if (!mesh.sharded()) return keys.same(key, "nothing is sharded");
  keys.set("reshard", policy == "never" ? "false" : "true",
           keys.has(key) ? key : fmt::format("{} is absent", key));
  if (policy == "always")
    keys.not_modelled("parallelism.fsdp_reshard_after_forward of the last unit",
                      "norm and output stay gathered between forward and backward");
}

void read_batch(KeyReader& keys, const Mesh& mesh) {
  const char* local = "training.local_batch_size";
  const char* global = "training.global_batch_size";
  set_whole(keys, "micro-batch", local, 8);
  set_whole(keys, "seq", "training.seq_len", 2048);
  const std::int64_t of_rank = keys.whole(local, 1, 1 << 26).value_or(8);
  const auto whole = keys.whole(global, -1, kMostSequences);
  if (!whole || *whole < 0) return keys.same(global, "one micro-batch a step");
  if (mesh.gpus == 0)
    return keys.refuse(global, "the number of GPUs says how it is divided", "add --gpus N");
  if (*whole == 0 || *whole % (of_rank * mesh.gpus) != 0)
    return keys.refuse(
        global,
        fmt::format("{} sequences are no multiple of {} x {} GPUs", *whole, of_rank, mesh.gpus),
        "torchtitan stops here, too");
  keys.set("accumulate", std::to_string(*whole / (of_rank * mesh.gpus)), global);
}

// ----------------------------------------------------------------------------------------------
// precision, recomputation, compilation

std::string short_dtype(const std::string& name) { return name == "bfloat16" ? "bf16" : "fp32"; }

void read_precision(KeyReader& keys, const Mesh& mesh) {
  const char* kept = "training.dtype";
  const char* compute = "training.mixed_precision_param";
  const char* reduce = "training.mixed_precision_reduce";
  const std::string own =
      short_dtype(keys.choice(kept, {"float32", "bfloat16"}).value_or("float32"));
  const std::string param =
      short_dtype(keys.choice(compute, {"bfloat16", "float32"}).value_or("bfloat16"));
  const std::string sum =
      short_dtype(keys.choice(reduce, {"float32", "bfloat16"}).value_or("float32"));
  if (keys.has(kept)) keys.set("model-dtype", own, kept);
  keys.set("param-dtype", param, by_default(keys, compute, "bfloat16"));
  if (mesh.sharded()) return keys.set("reduce-dtype", sum, by_default(keys, reduce, "float32"));
  keys.same(reduce, "FSDP only");
  keys.set("autocast", yes_no(param == "bf16" && own == "fp32"),
           "without sharding torchtitan computes under torch.autocast");
}

void read_checkpoint(KeyReader& keys) {
  const char* mode = "activation_checkpoint.mode";
  const char* option = "activation_checkpoint.selective_ac_option";
  const char* early = "activation_checkpoint.early_stop";
  const std::string kind =
      keys.choice(mode, {"selective", "full", "none", "memory_budget"}).value_or("selective");
  if (kind == "memory_budget")
    return keys.refuse(mode, "the compiler's memory budget is not planned", "full or selective");
  if (kind != "selective") {
    keys.set("checkpoint", kind, mode);
    keys.same(option, "with mode \"selective\" only");
  } else {
    const std::string of = keys.word(option).value_or("2");
    const bool number =
        !of.empty() && of.size() < 9 &&
        std::all_of(of.begin(), of.end(), [](unsigned char c) { return std::isdigit(c); });
    if (of != "op" && !(number && std::stoi(of) > 0))
      return keys.refuse(option, fmt::format("found \"{}\"", of),
                         "\"op\" or every how many blocks");
    keys.set("checkpoint", of == "op" ? "selective" : "every:" + of,
             by_default(keys, option, "\"2\""));
    if (number && of != "1")
      keys.not_modelled("first recomputed block",
                        fmt::format("torchtitan starts with block {}, the "
                                    "plan with block 0",
                                    std::stoi(of) - 1));
  }
  keys.same(mode, "as selective_ac_option says");
  if (kind != "none" && !keys.boolean(early).value_or(false))
    keys.not_modelled(early,
                      "torchtitan recomputes a block to its end; planned: to the last tensor "
                      "that backward needs");
  keys.same(early, "as planned");
}

void read_compile(KeyReader& keys) {
  const char* enable = "compile.enable";
  const char* components = "compile.components";
  const char* old = "training.compile";
  const bool on = keys.boolean(enable).value_or(false) || keys.boolean(old).value_or(false);
  const auto parts = keys.words(components).value_or(std::vector<std::string>{"model", "loss"});
  const auto has = [&](const char* part) {
    return std::find(parts.begin(), parts.end(), part) != parts.end();
  };
  if (on && has("model")) keys.set("compile", "yes", keys.has(enable) ? enable : old);
  if (on && has("loss"))
    keys.not_modelled(components, "the compiled loss; it is planned kernel by kernel");
  for (const char* key : {enable, components, old}) keys.same(key, on ? "as compile says" : "off");
}

// ----------------------------------------------------------------------------------------------
// optimizer, 8-bit products, the rest

void read_optimizer(KeyReader& keys) {
  const char* name = "optimizer.name";
  const char* form = "optimizer.implementation";
  keys.choice(name, {"AdamW", "Adam"});
  const std::string how = keys.choice(form, {"fused", "foreach", "for-loop"}).value_or("fused");
  keys.set("optimizer", how == "fused" ? "adamw" : "adamw-" + how, by_default(keys, form, "fused"));
  keys.same(name, "the same kernels");
}

void read_float8(KeyReader& keys) {
  const std::string section = "quantize.linear.float8.";
  const std::string recipe = section + "recipe_name",
                    gathers = section + "enable_fsdp_float8_all_gather",
                    scales = section + "precompute_float8_dynamic_scale_for_fsdp",
                    filter = section + "filter_fqns";
  const char* converters = "model.converters";
  bool on = false;
  for (const std::string& c : keys.words(converters).value_or(std::vector<std::string>{})) {
    on = on || c == "float8" || c == "quantize.linear.float8";
    if (c != "float8" && c != "quantize.linear.float8")
      keys.refuse(converters, fmt::format("the converter {} is not planned", Json(c).dump()),
                  "float8 is");
  }
  const auto kind = keys.choice(recipe, {"tensorwise", "rowwise", "rowwise_with_gw_hp"});
  const bool of_gathers = keys.boolean(gathers).value_or(false);
  if (on) {
    keys.set("float8", kind == "rowwise_with_gw_hp" ? "rowwise-gw-hp" : kind.value_or("tensorwise"),
             kind ? recipe : converters);
    if (kind && of_gathers)
      keys.refuse(gathers, "stands beside recipe_name", "torchtitan stops here, too");
    else if (of_gathers) {
      keys.set("float8-all-gather", "yes", gathers);
      keys.set("float8-precompute-scales", yes_no(keys.boolean(scales).value_or(false)), scales);
    }
    const auto kept = keys.words(filter).value_or(std::vector<std::string>{});
    if (std::any_of(kept.begin(), kept.end(), [](const std::string& f) { return f != "output"; }))
      keys.not_modelled(filter, "all linear layers of the blocks are planned in 8 bits");
  }
  for (const std::string& key : {std::string(converters), recipe, gathers, scales, filter})
    keys.same(key, on ? "as planned" : "without the converter \"float8\" nothing is in 8 bits");
}

}  // namespace

void read(const Json& file, std::int64_t gpus, ForeignJob& job, IssueList& issues) {
  KeyReader keys(file, key_table(), other_names(), job, issues);
  read_model(keys);
  const Mesh mesh = read_mesh(keys, gpus);
  read_reshard(keys, mesh);
  read_batch(keys, mesh);
  read_precision(keys, mesh);
  read_checkpoint(keys);
  read_compile(keys);
  read_optimizer(keys);
  read_float8(keys);
  keys.set("clip", "yes", by_default(keys, "training.max_norm", "1.0"));
  const char* offload = "training.enable_cpu_offload";
  if (keys.boolean(offload).value_or(false) && mesh.sharded())
    keys.set("offload", "params", offload);
  keys.same(offload, "off, or nothing is sharded");
  if (mesh.gpus == 0) keys.open("gpus", "", "the launcher's number of processes");
  keys.finish();
}

}  // namespace foreshard::cli::torchtitan

namespace foreshard::cli {

ForeignJob import_torchtitan(std::string_view text, const std::string& file, std::int64_t gpus) {
  ForeignJob job;
  job.program = "torchtitan (before its configurations became Python)";
  job.file = file;
  IssueList issues(file);
  torchtitan::read(parse_toml(text, file), gpus, job, issues);
  issues.throw_if_any();
  return job;
}

}  // namespace foreshard::cli
