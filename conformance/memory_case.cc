#include "conformance/memory_case.h"

#include <map>

#include "conformance/model_spec.h"
#include "core/json.h"
#include "models/load_model.h"
#include "models/plain/plain_models.h"
#include "schedules/planner/framework_table.h"

namespace foreshard {
namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& message) {
  throw InputError(Issue{"", key, message, ""});
}

std::optional<DType> dtype_or_none(const Json& value, const std::string& key) {
  if (value.is_null()) return std::nullopt;
  const auto dtype = parse_dtype(value.get<std::string>());
  if (!dtype) refuse(key, "unknown dtype " + describe_json(value));
  return dtype;
}

void set_dtype(Model& model, DType dtype) {
  for (ParameterDef& p : model.parameters) {
    if (is_floating(p.dtype)) p.dtype = dtype;
  }
  for (Module& m : model.modules) {
    for (BufferDef& b : m.buffers) {
      if (is_floating(b.dtype)) b.dtype = dtype;
    }
  }
}

Model read_model(const Json& m, DType dtype) {
  const std::string kind = m.at("kind").get<std::string>();
  if (kind == "hf") {
    Model model = model_from_json(m.at("inline"), m.value("config", "config.json"));
    set_dtype(model, dtype);
    return model;
  }
  PlainModelOptions o;
  o.layers = m.at("layers").get<std::int64_t>();
  o.hidden = m.at("hidden").get<std::int64_t>();
  o.heads = m.at("heads").get<std::int64_t>();
  o.kv_heads = m.value("kv_heads", std::int64_t{0});
  o.ffn = m.value("ffn", std::int64_t{0});
  o.vocabulary = m.at("vocab").get<std::int64_t>();
  o.max_sequence = m.value("max_seq", o.max_sequence);
  o.tied = m.value("tied", kind == "gpt2");
  o.head_dim = m.value("head_dim", std::int64_t{0});
  o.qk_norm = m.value("qk_norm", false);
  o.dropout = m.value("dropout", 0.0);
  o.dtype = dtype;
  if (kind != "llama" && kind != "gpt2")
    refuse("model.kind", "unknown kind of model '" + kind + "'");
  Model model = kind == "llama" ? plain_llama(o) : plain_gpt2(o);
  if (dtype != DType::kFloat32) set_dtype(model, dtype);  // model.to(dtype) converts buffers too
  return model;
}

template <typename Value>
Value choose(const Json& c, const std::string& key, const std::map<std::string, Value>& values) {
  const std::string text = c.at(key).get<std::string>();
  const auto it = values.find(text);
  if (it == values.end()) refuse(key, "cannot be '" + text + "'");
  return it->second;
}

void read_framework(const Json& c, ParallelConfig& p) {
  const auto name = c.at("framework").get<std::string>();
  const FrameworkRow* framework = find_framework(name);
  if (framework == nullptr) refuse("framework", "cannot be '" + name + "'");
  p.framework = framework->kind;
  const auto world = c.at("world").get<std::int64_t>(),
             replicas = c.at("hsdp_replicas").get<std::int64_t>();
  const bool ddp = framework->ranks == RankLayout::kCopies;
  p.shard = ddp ? 1 : world / replicas;
  p.replicate = ddp ? world : replicas;
  const std::string wrap = c.at("wrap").get<std::string>();
  p.wrap.root_split = c.at("root_split").get<bool>();
  if (wrap == "none") {
    p.wrap.kind = WrapPolicy::Kind::kRootOnly;
  } else if (wrap != "block") {
    p.wrap.kind = WrapPolicy::Kind::kEveryK;
    p.wrap.every = std::stoll(wrap);
  }
  p.reshard = reshard_of(c.at("reshard_after_forward"));
  p.root_reshard = reshard_of(c.at("root_reshard"));
  p.reduce_scatter_max_inputs = c.at("rs_max_input_buffers").get<std::int64_t>();
  p.unshard_async = c.at("unshard_async").get<bool>();
  if (const std::int64_t n = c.at("forward_prefetch").is_boolean()
                                 ? 0
                                 : c.at("forward_prefetch").get<std::int64_t>()) {
    p.prefetch_forward = n;
  }
  if (!c.at("backward_prefetch").is_null())
    p.prefetch_backward = c.at("backward_prefetch").get<std::int64_t>();
}

void read_other_frameworks(const Json& c, ParallelConfig& p) {
  p.ddp.verify_parameters =
      false;  // The recordings leave it out: their device computes nothing to compare.
  if (!c.at("bucket_cap_mb").is_null()) p.ddp.bucket_cap_mib = c.at("bucket_cap_mb").get<double>();
  p.ddp.gradient_as_bucket_view = c.at("gradient_as_bucket_view").get<bool>();
  p.ddp.static_graph = c.at("static_graph").get<bool>();
  p.fsdp1.strategy = choose<Fsdp1Options::Strategy>(
      c, "sharding_strategy",
      {{"FULL_SHARD", Fsdp1Options::Strategy::kFullShard},
       {"SHARD_GRAD_OP", Fsdp1Options::Strategy::kShardGradOp},
       {"HYBRID_SHARD", Fsdp1Options::Strategy::kHybrid},
       {"NO_SHARD", Fsdp1Options::Strategy::kNoShard},
       {"_HYBRID_SHARD_ZERO2", Fsdp1Options::Strategy::kHybridZero2}});
  p.fsdp1.backward_prefetch = choose<Fsdp1Options::BackwardPrefetch>(
      c, "backward_prefetch_mode",
      {{"BACKWARD_PRE", Fsdp1Options::BackwardPrefetch::kPre},
       {"BACKWARD_POST", Fsdp1Options::BackwardPrefetch::kPost},
       {"none", Fsdp1Options::BackwardPrefetch::kNone}});
  p.fsdp1.forward_prefetch = c.at("forward_prefetch").is_boolean()
                                 ? c.at("forward_prefetch").get<bool>()
                                 : c.at("forward_prefetch").get<std::int64_t>() != 0;
  p.fsdp1.limit_all_gathers = c.at("limit_all_gathers").get<bool>();
  p.fsdp1.use_orig_params = c.at("use_orig_params").get<bool>();
}

void read_training(const Json& c, ParallelConfig& p) {
  p.micro_batch = c.at("micro_batch").get<std::int64_t>();
  p.sequence = c.at("seq").get<std::int64_t>();
  p.accumulate = c.at("grad_accum").get<std::int64_t>();
  p.sync_each_micro_batch = c.at("sync_each_microbatch").get<bool>();
  p.precision.param = dtype_or_none(c.at("param_dtype"), "param_dtype");
  p.precision.reduce = dtype_or_none(c.at("reduce_dtype"), "reduce_dtype");
  p.model_dtype = *dtype_or_none(c.at("model_dtype"), "model_dtype");
  p.autocast = c.at("autocast").get<bool>();
  const std::string checkpoint = c.at("activation_checkpointing").get<std::string>();
  if (checkpoint == "full") p.checkpoint = CheckpointKind::kFull;
  if (checkpoint == "selective_op") p.checkpoint = CheckpointKind::kSelectiveOp;
  if (checkpoint.starts_with("every_")) {
    p.checkpoint = CheckpointKind::kEveryK;
    p.checkpoint_every = std::stoll(checkpoint.substr(6));
  }
  p.optimizer = choose<OptimizerKind>(c, "optimizer",
                                      {{"adamw", OptimizerKind::kAdamWForeach},
                                       {"adamw_default", OptimizerKind::kAdamWForeach},
                                       {"adamw_fused", OptimizerKind::kAdamWFused},
                                       {"adamw_for", OptimizerKind::kAdamWForLoop},
                                       {"sgd", OptimizerKind::kSgd},
                                       {"sgd_momentum", OptimizerKind::kSgd},
                                       {"none", OptimizerKind::kNone}});
  p.momentum = c.at("optimizer") == "sgd_momentum" ? 0.9 : 0;
  p.clip = c.at("clip_grad").get<bool>();
  p.offload = c.at("cpu_offload").get<bool>() ? OffloadKind::kParameters : OffloadKind::kNone;
  p.attention = c.at("attention") == "flash" ? AttentionKind::kFlash : AttentionKind::kSdpa;
  p.loss = c.at("loss") == "ce_float" ? LossKind::kCrossEntropyFloat : LossKind::kCrossEntropy;
}

/// torchao's linear layers in the blocks; absent in most recordings.
void read_float8(const Json& c, ParallelConfig& p) {
  if (!c.contains("float8") || c.at("float8").is_null()) return;
  p.float8 = choose<Float8Kind>(c, "float8",
                                {{"tensorwise", Float8Kind::kTensorwise},
                                 {"rowwise", Float8Kind::kRowwise},
                                 {"rowwise_with_gw_hp", Float8Kind::kRowwiseHighPrecision}});
  p.float8_all_gather = c.value("float8_all_gather", false);
  p.float8_precompute_scales = c.value("float8_precompute", false);
}

/// "instant", "sync" or "lag:N".
void read_events(const std::string& text, MemoryCase& m) {
  if (text == "instant") return;
  if (text == "sync") {
    m.events = DeviceEvents::kWhenWaited;
  } else if (text.starts_with("lag:")) {
    m.events = DeviceEvents::kLagging;
    m.lag = std::stoll(text.substr(4));
  } else {
    refuse("events", "cannot be '" + text + "'");
  }
}

}  // namespace

MemoryCase read_memory_case(const Json& c) {
  MemoryCase m;
  m.id = c.value("id", "case");
  read_framework(c, m.config);
  read_other_frameworks(c, m.config);
  read_training(c, m.config);
  read_float8(c, m.config);
  m.model = read_model(c.at("model"), m.config.model_dtype);
  m.buffers_on_host = c.at("model").at("kind") == "hf" &&
                      m.config.framework == FrameworkKind::kFsdp2 &&
                      m.config.offload == OffloadKind::kParameters;
  // The recordings' device answers every read-back with zeros, so the library takes each batch for
  // packed sequences.
  m.config.packed_sequences = c.at("model").at("kind") == "hf";
  m.rank = c.at("rank").get<std::int64_t>();
  m.steps = c.at("steps").get<std::int64_t>();
  if (!c.value("alloc_conf", "").empty())
    m.allocator = parse_alloc_conf(c.at("alloc_conf").get<std::string>());
  m.allocator.expandable_segments =
      m.allocator.expandable_segments || c.at("expandable_segments").get<bool>();
  m.device_memory = Bytes(c.at("mem_bytes").get<std::int64_t>());
  read_events(c.at("events").get<std::string>(), m);
  return m;
}

}  // namespace foreshard
