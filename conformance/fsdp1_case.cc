#include "conformance/fsdp1_case.h"

#include <map>
#include <set>
#include <string>

#include "core/error.h"
#include "core/json.h"

namespace foreshard {
namespace {

using Policy = Fsdp1Options::Policy;
using Names = std::vector<std::string>;

template <typename Value>
Value choose(const std::string& key, const std::string& text,
             const std::map<std::string, Value>& values) {
  const auto it = values.find(text);
  if (it != values.end()) return it->second;
  std::string allowed;
  for (const auto& [name, value] : values) allowed += (allowed.empty() ? "" : ", ") + name;
  throw InputError(Issue{"", key, "cannot be '" + text + "'", allowed});
}

void check_keys(const Json& object, const std::string& path, const std::set<std::string>& known) {
  std::vector<Issue> issues;
  for (const auto& [key, value] : object.items()) {
    if (known.count(key) != 0) continue;
    issues.push_back({"", path + "." + key, "unknown option", ""});
  }
  if (!issues.empty()) throw InputError(std::move(issues));
}

Fsdp1Options::Strategy strategy_of(const Json& name) {
  return choose<Fsdp1Options::Strategy>(
      "sharding", name.get<std::string>(),
      {{"FULL_SHARD", Fsdp1Options::Strategy::kFullShard},
       {"SHARD_GRAD_OP", Fsdp1Options::Strategy::kShardGradOp},
       {"NO_SHARD", Fsdp1Options::Strategy::kNoShard},
       {"HYBRID_SHARD", Fsdp1Options::Strategy::kHybrid},
       {"_HYBRID_SHARD_ZERO2", Fsdp1Options::Strategy::kHybridZero2}});
}

Fsdp1Options::BackwardPrefetch prefetch_of(const Json& name) {
  if (name.is_null()) return Fsdp1Options::BackwardPrefetch::kNone;
  return choose<Fsdp1Options::BackwardPrefetch>("backward_prefetch", name.get<std::string>(),
                                                {{"PRE", Fsdp1Options::BackwardPrefetch::kPre},
                                                 {"POST", Fsdp1Options::BackwardPrefetch::kPost}});
}

/// Null: none.
MixedPrecision precision_of(const Json& mp) {
  MixedPrecision p;
  if (mp.is_null()) return p;
  p.param = dtype_or_none(mp, "param");
  p.reduce = dtype_or_none(mp, "reduce");
  p.buffer = dtype_or_none(mp, "buffer");
  p.cast_forward_inputs = mp.value("cast_forward_inputs", false);
  return p;
}

void read_mixed_precision(const Json& mp, ParallelConfig& config) {
  if (mp.is_null()) return;
  check_keys(mp, "mixed_precision",
             {"param", "reduce", "buffer", "keep_low_precision_grads", "cast_forward_inputs",
              "cast_root_forward_inputs", "ignore_classes"});
  config.precision = precision_of(mp);
  Fsdp1Options& o = config.fsdp1;
  o.keep_low_precision_grads = mp.value("keep_low_precision_grads", false);
  o.cast_forward_inputs = mp.value("cast_forward_inputs", false);
  o.cast_root_forward_inputs = mp.value("cast_root_forward_inputs", true);
  if (mp.contains("ignore_classes")) {
    o.full_precision_classes = mp.at("ignore_classes").get<Names>();
  }
}

void read_custom(const Json& modules, Fsdp1Options& o) {
  for (const auto& [name, value] : modules.items()) {
    // CustomPolicy: false and an empty dictionary mean "not wrapped".
    if (value.is_boolean() ? !value.get<bool>() : value.empty()) continue;
    Fsdp1Options::Override& own = o.custom[name];
    if (value.is_boolean()) continue;
    check_keys(value, name, {"sharding_strategy", "backward_prefetch", "mixed_precision"});
    if (value.contains("sharding_strategy")) own.strategy = strategy_of(value["sharding_strategy"]);
    if (value.contains("backward_prefetch")) {
      own.backward_prefetch = prefetch_of(value["backward_prefetch"]);
    }
    if (value.contains("mixed_precision")) own.precision = precision_of(value["mixed_precision"]);
  }
}

void read_wrap(const Json& wrap, Fsdp1Options& o) {
  o.policy = choose<Policy>("wrap.policy", wrap.at("policy").get<std::string>(),
                            {{"module_class", Policy::kModuleClass},
                             {"transformer", Policy::kTransformer},
                             {"size", Policy::kSize},
                             {"lambda", Policy::kLambda},
                             {"always", Policy::kAlways},
                             {"custom", Policy::kCustom},
                             {"manual", Policy::kManual}});
  if (wrap.contains("classes")) o.policy_names = wrap.at("classes").get<Names>();
  if (o.policy == Policy::kCustom) return read_custom(wrap.at("modules"), o);
  if (wrap.contains("modules")) o.policy_names = wrap.at("modules").get<Names>();
  if (wrap.contains("min_num_params")) o.min_elements = wrap.at("min_num_params");
  if (wrap.contains("force_leaf")) o.force_leaf_classes = wrap.at("force_leaf").get<Names>();
  if (wrap.contains("exclude")) o.exclude_classes = wrap.at("exclude").get<Names>();
}

void read_checkpoint(const Json& ck, Fsdp1Case& c) {
  const Names classes = ck.at("classes").get<Names>();
  ParallelConfig& config = c.config;
  config.checkpoint = CheckpointKind::kModules;
  config.checkpoint_reentrant = ck.at("impl") == "reentrant";
  config.checkpoint_outside_units = ck.at("place") == "outside";
  for (const Module& m : c.spec.model.modules) {
    for (const std::string& name : classes) {
      if (m.class_name == name) config.checkpoint_modules.push_back(m.name);
    }
  }
}

void read_options(const Json& o, Fsdp1Case& c) {
  check_keys(o, "options",
             {"sharding", "cpu_offload", "backward_prefetch", "mixed_precision", "forward_prefetch",
              "limit_all_gathers", "use_orig_params", "ignored_modules", "ignored_params",
              "accumulate", "checkpoint", "clip"});
  Fsdp1Options& f = c.config.fsdp1;
  if (o.contains("sharding")) f.strategy = strategy_of(o.at("sharding"));
  if (o.contains("backward_prefetch")) f.backward_prefetch = prefetch_of(o["backward_prefetch"]);
  f.forward_prefetch = o.value("forward_prefetch", false);
  f.limit_all_gathers = o.value("limit_all_gathers", true);
  f.use_orig_params = o.value("use_orig_params", false);
  f.ignored_modules = o.value("ignored_modules", Names{});
  f.ignored_parameters = o.value("ignored_params", Names{});
  c.config.precision = MixedPrecision{};
  if (o.contains("mixed_precision")) read_mixed_precision(o.at("mixed_precision"), c.config);
  if (o.value("cpu_offload", false)) c.config.offload = OffloadKind::kParameters;
  c.micro_batches = o.value("accumulate", std::vector<bool>{true});
  c.config.accumulate = static_cast<std::int64_t>(c.micro_batches.size());
  if (o.contains("checkpoint")) read_checkpoint(o.at("checkpoint"), c);
  c.config.clip = o.contains("clip");
  if (c.config.clip) c.config.max_norm = o.at("clip").get<double>();
}

}  // namespace

Fsdp1Case read_fsdp1_case(const Json& golden_case) {
  Fsdp1Case c;
  c.spec = read_model_spec(golden_case, LeafInputs::kCastToWeight);
  c.rank = golden_case.at("rank").get<std::int64_t>();
  c.steps = golden_case.value("steps", std::int64_t{3});
  ParallelConfig& config = c.config;
  config.framework = FrameworkKind::kFsdp1;
  config.shard = golden_case.at("mesh").at("shard").get<std::int64_t>();
  config.replicate = golden_case.at("mesh").value("replicate", std::int64_t{1});
  config.optimizer = OptimizerKind::kSgd;
  config.momentum = 0;
  config.loss = LossKind::kMeanSquareOutput;
  read_wrap(golden_case.at("wrap"), config.fsdp1);
  read_options(golden_case.at("options"), c);
  return c;
}

}  // namespace foreshard
