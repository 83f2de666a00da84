#include "conformance/zero_case.h"

#include "core/error.h"
#include "core/json.h"

namespace foreshard {
namespace {

DType short_dtype(const std::string& name) {
  if (name == "fp32") return DType::kFloat32;
  return name == "fp16" ? DType::kFloat16 : DType::kBFloat16;
}

void refuse_unplanned(const Json& options) {
  const Json& z = options.at("zero");
  const auto refuse = [](const char* what) { throw InputError(Issue{"", what, "is not planned", "a case without it"}); };
  for (const char* key : {"offload_param", "offload_optimizer"}) if (z.contains(key)) refuse(key);
  if (z.contains("zero_hpz_partition_size")) refuse("zero_hpz_partition_size");
  if (z.contains("stage3_module_granularity_threshold")) refuse("stage3_module_granularity_threshold");
  if (options.contains("data_types")) refuse("data_types");
  if (options.contains("checkpoint") && options.at("checkpoint").at("impl") == "reentrant") refuse("reentrant checkpointing");
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
  o.contiguous_gradients = z.value("contiguous_gradients", true);
  o.reduce_scatter = z.value("reduce_scatter", true);
  o.round_robin_gradients = z.value("round_robin_gradients", false);
  c.extras.multi_rank_all_reduce = z.value("use_multi_rank_bucket_allreduce", true);
}

}  // namespace

ZeroCase read_zero_case(const Json& golden_case) {
  const Json& options = golden_case.at("options");
  refuse_unplanned(options);
  ZeroCase c;
  c.spec = read_model_spec(golden_case);
  c.rank = golden_case.at("rank").get<std::int64_t>();
  c.steps = golden_case.value("steps", std::int64_t{4});
  ParallelConfig& config = c.config;
  const int stage = options.at("zero").at("stage").get<int>();
  config.framework = stage == 1 ? FrameworkKind::kZero1 : stage == 2 ? FrameworkKind::kZero2 : FrameworkKind::kZero3;
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
  c.extras.leaf_classes = options.value("z3_leaf_classes", std::vector<std::string>{});
  if (options.contains("communication_data_type")) {
    c.extras.has_communication_dtype = true;
    c.extras.communication_dtype = short_dtype(options.at("communication_data_type").get<std::string>());
  }
  for (ModelArgument& a : c.spec.model.arguments) if (!a.tokens) a.dtype = *config.precision.param;
  if (options.contains("checkpoint")) {
    const auto classes = options.at("checkpoint").at("classes").get<std::vector<std::string>>();
    config.checkpoint = CheckpointKind::kModules;
    for (const Module& m : c.spec.model.modules) {
      for (const std::string& name : classes) if (m.class_name == name) config.checkpoint_modules.push_back(m.name);
    }
  }
  return c;
}

}  // namespace foreshard
