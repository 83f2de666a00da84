#include "conformance/ddp_case.h"

#include <algorithm>
#include <string>

#include "core/json.h"

namespace foreshard {
namespace {

DdpCommHook read_hook(const Json& options) {
  const std::string name = options.value("comm_hook", "none");
  if (name == "none") return DdpCommHook::kNone;
  if (name == "allreduce") return DdpCommHook::kAllReduce;
  if (name == "bf16") return DdpCommHook::kBf16Compress;
  if (name == "fp16") return DdpCommHook::kFp16Compress;
  if (name == "powersgd") return DdpCommHook::kPowerSgd;
  throw InputError(
      Issue{"", "comm_hook", "cannot be '" + name + "'", "allreduce, bf16, fp16, powersgd"});
}

MixedPrecision read_mixed_precision(const Json& o) {
  MixedPrecision mp;
  if (o.contains("param")) mp.param = dtype_of(o.at("param"));
  if (o.contains("reduce")) mp.reduce = dtype_of(o.at("reduce"));
  if (o.contains("buffer")) mp.buffer = dtype_of(o.at("buffer"));
  return mp;
}

void read_power_sgd(const Json& state, PowerSgdOptions& o) {
  o.rank = state.value("matrix_approximation_rank", o.rank);
  o.start_iteration = state.value("start_powerSGD_iter", o.start_iteration);
  o.min_compression_rate = state.value("min_compression_rate", o.min_compression_rate);
  o.error_feedback = state.value("use_error_feedback", o.error_feedback);
  o.warm_start = state.value("warm_start", o.warm_start);
}

void read_options(const Json& options, DdpOptions& o) {
  if (const auto cap = options.find("bucket_cap_mb"); cap != options.end() && !cap->is_null()) {
    o.bucket_cap_mib = cap->get<double>();
  }
  o.bucket_cap_mib_list = options.value("bucket_cap_mb_list", std::vector<double>{});
  o.find_unused_parameters = options.value("find_unused_parameters", false);
  o.static_graph = options.value("static_graph", false);
  o.gradient_as_bucket_view = options.value("gradient_as_bucket_view", false);
  o.broadcast_buffers = options.value("broadcast_buffers", true);
  o.init_sync = options.value("init_sync", true);
  o.skip_all_reduce_unused = options.value("skip_all_reduce_unused_params", false);
  o.batched_grad_copy = options.value("batched_grad_copy", false);
  o.lazy_bucket_allocation = options.value("lazy_bucket_allocation", false);
  o.ignored_parameters = options.value("ignored_params", std::vector<std::string>{});
  o.last_bucket_small =
      options.value("env", Json::object()).value("DDP_SET_LAST_BUCKET_CAP", "") == "1";
  o.comm_hook = read_hook(options);
  if (options.contains("power_sgd")) read_power_sgd(options.at("power_sgd"), o.power_sgd);
  if (options.contains("mixed_precision"))
    o.mixed_precision = read_mixed_precision(options.at("mixed_precision"));
}

void read_checkpoint(const Json& checkpoint, const Model& model, ParallelConfig& config) {
  const auto classes = checkpoint.at("classes").get<std::vector<std::string>>();
  config.checkpoint = CheckpointKind::kModules;
  config.checkpoint_reentrant = checkpoint.at("impl") == "reentrant";
  for (const Module& m : model.modules) {
    if (std::find(classes.begin(), classes.end(), m.class_name) != classes.end())
      config.checkpoint_modules.push_back(m.name);
  }
}

}  // namespace

DdpCase read_ddp_case(const Json& golden_case) {
  const Json& options = golden_case.at("options");
  DdpCase c;
  c.spec = read_model_spec(golden_case, LeafInputs::kCastToWeight);
  c.rank = golden_case.at("rank").get<std::int64_t>();
  c.steps = golden_case.value("steps", std::int64_t{3});
  c.micro_batches = options.value("accumulate", std::vector<bool>{true});
  ParallelConfig& config = c.config;
  config.framework = FrameworkKind::kDdp;
  config.shard = 1;
  config.replicate = golden_case.at("mesh").value("replicate", std::int64_t{1});
  config.precision = MixedPrecision{};
  config.optimizer = OptimizerKind::kNone;
  config.clip = false;
  config.loss = LossKind::kMeanSquareOutput;
  read_options(options, config.ddp);
  if (options.contains("checkpoint"))
    read_checkpoint(options.at("checkpoint"), c.spec.model, config);
  return c;
}

}  // namespace foreshard
