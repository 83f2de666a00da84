#include "conformance/zero_case.h"

#include "core/error.h"
#include "core/json.h"

namespace foreshard {
namespace {

DType short_dtype(const std::string& name) {
  if (name == "fp32") return DType::kFloat32;
  return name == "fp16" ? DType::kFloat16 : DType::kBFloat16;
}

void read_zero_options(const Json& z, ZeroCase& c) {
  ZeroOptions& o = c.config.zero;
  const auto integer = [&](const char* key, std::int64_t& value) { value = z.value(key, value); };
  integer("reduce_bucket_size", o.reduce_bucket_size);
  integer("allgather_bucket_size", o.allgather_bucket_size);
  integer("stage3_prefetch_bucket_size", o.prefetch_bucket_size);
  integer("stage3_param_persistence_threshold", o.param_persistence_threshold);
  integer("stage3_model_persistence_threshold", o.model_persistence_threshold);
  integer("stage3_max_live_parameters", o.max_live_parameters);
  integer("stage3_max_reuse_distance", o.max_reuse_distance);
  integer("sub_group_size", o.sub_group_size);
  if (z.contains("overlap_comm")) o.overlap_comm = z.at("overlap_comm").get<bool>();
  integer("zero_hpz_partition_size", o.hpz_partition_size);
  integer("stage3_module_granularity_threshold", o.module_granularity_threshold);
  o.contiguous_gradients = z.value("contiguous_gradients", true);
  o.reduce_scatter = z.value("reduce_scatter", true);
  o.round_robin_gradients = z.value("round_robin_gradients", false);
  o.multi_rank_all_reduce = z.value("use_multi_rank_bucket_allreduce", true);
  const bool optimizer = z.contains("offload_optimizer"), parameters = z.contains("offload_param");
  c.config.offload = optimizer && parameters ? OffloadKind::kBoth
                     : optimizer             ? OffloadKind::kOptimizer
                     : parameters            ? OffloadKind::kParameters
                                             : OffloadKind::kNone;
}

/// checkpoint_wrapper(module): a module of its own around it, which frameworks see too. It answers
/// for attributes of what it wraps, so it has the same class name (and is a leaf where that is
/// one).
void wrap(Model& model, ModuleId inner) {
  const auto wrapper = static_cast<std::uint32_t>(model.modules.size());
  Module w;
  w.name = model.at(inner).name + kCheckpointWrapper;
  w.class_name = model.at(inner).class_name;
  Statement call;
  call.child = inner;
  const auto slot = [&w](ValueSlot, const char* name) {
    w.value_names.push_back(name + std::to_string(w.value_names.size()));
    return static_cast<ValueSlot>(w.value_names.size() - 1);
  };
  for (const ValueSlot v : model.at(inner).inputs) w.inputs.push_back(slot(v, "in"));
  for (const ValueSlot v : model.at(inner).outputs) w.outputs.push_back(slot(v, "out"));
  call.inputs = w.inputs;
  call.outputs = w.outputs;
  w.program.push_back(call);
  for (Module& m : model.modules) {
    for (ChildModule& c : m.children)
      if (c.id == inner) c.id = ModuleId(wrapper);
    for (Statement& s : m.program) {
      if (s.function == Function::kCall && s.child == inner) s.child = ModuleId(wrapper);
    }
  }
  w.children.push_back({"_checkpoint_wrapped_module", inner});
  model.modules.push_back(std::move(w));
}

}  // namespace

ZeroCase read_zero_case(const Json& golden_case) {
  const Json& options = golden_case.at("options");
  ZeroCase c;
  c.spec = read_model_spec(golden_case);
  c.rank = golden_case.at("rank").get<std::int64_t>();
  c.steps = golden_case.value("steps", std::int64_t{4});
  ParallelConfig& config = c.config;
  const int stage = options.at("zero").at("stage").get<int>();
  config.framework = stage == 1   ? FrameworkKind::kZero1
                     : stage == 2 ? FrameworkKind::kZero2
                                  : FrameworkKind::kZero3;
  config.shard = golden_case.at("mesh").at("shard").get<std::int64_t>();
  config.accumulate = options.value("gradient_accumulation_steps", std::int64_t{1});
  config.precision = MixedPrecision{};
  config.precision.param = short_dtype(options.value("precision", "bf16"));
  config.optimizer = OptimizerKind::kAdamWForeach;
  config.clip = options.contains("gradient_clipping");
  config.loss = LossKind::kMeanSquareOutput;
  read_zero_options(options.at("zero"), c);
  c.extras.two_parameter_groups = options.value("param_groups", 1) == 2;
  c.extras.timer_from_step = 2;
  config.zero.leaf_classes = options.value("z3_leaf_classes", std::vector<std::string>{});
  config.zero.wall_clock_breakdown = options.value("wall_clock_breakdown", false);
  if (options.contains("timers")) {
    const Json& timer = options.at("timers").at("throughput");
    config.zero.throughput_timer =
        timer.value("enabled", true) && timer.value("synchronized", true);
  }
  if (options.contains("communication_data_type")) {
    config.zero.communication_dtype =
        short_dtype(options.at("communication_data_type").get<std::string>());
  }
  if (options.contains("data_types")) {
    config.zero.grad_accum_dtype =
        short_dtype(options.at("data_types").at("grad_accum_dtype").get<std::string>());
  }
  for (ModelArgument& a : c.spec.model.arguments)
    if (!a.tokens) a.dtype = *config.precision.param;
  if (options.contains("checkpoint")) {
    const auto classes = options.at("checkpoint").at("classes").get<std::vector<std::string>>();
    config.checkpoint = CheckpointKind::kModules;
    config.checkpoint_outside_units = true;
    config.checkpoint_reentrant = options.at("checkpoint").at("impl") == "reentrant";
    const std::size_t modules = c.spec.model.modules.size();
    for (std::uint32_t i = 0; i < modules; ++i) {
      for (const std::string& name : classes) {
        if (c.spec.model.modules[i].class_name != name) continue;
        config.checkpoint_modules.push_back(c.spec.model.modules[i].name +
                                            "._checkpoint_wrapped_module");
        wrap(c.spec.model, ModuleId(i));
      }
    }
  }
  return c;
}

}  // namespace foreshard
