#include "conformance/fsdp2_case.h"

#include <map>
#include <string>

#include "core/json.h"
#include "models/describe.h"

namespace foreshard {
namespace {

WrapCall read_call(const Json& entry) {
  WrapCall call;
  call.modules = entry.at("modules").get<std::vector<std::string>>();
  call.reshard = reshard_of(entry.value("reshard_after_forward", Json()));
  call.precision = MixedPrecision{};
  if (const auto mp = entry.find("mp_policy"); mp != entry.end() && !mp->is_null()) {
    call.precision->param = dtype_or_none(*mp, "param_dtype");
    call.precision->reduce = dtype_or_none(*mp, "reduce_dtype");
    call.precision->output = dtype_or_none(*mp, "output_dtype");
    call.precision->cast_forward_inputs = mp->value("cast_forward_inputs", true);
    const Json overrides = mp->value("param_dtype_override", Json::object());
    for (const auto& [name, dtype] : overrides.items()) {
      call.param_dtype_override.emplace(name, dtype_of(dtype));
    }
  }
  const Json placements = entry.value("shard_placement", Json::object());
  for (const auto& [name, place] : placements.items()) {
    if (place.is_null()) continue;
    call.placement[name] = {place.value("dim", 0), place.value("mesh_size", std::int64_t{0})};
  }
  for (const Json& name : entry.value("ignored_params", Json::array()))
    call.ignored_parameters.push_back(name.get<std::string>());
  call.offload = entry.value("offload", false);
  call.as_list = entry.value("as_list", false);
  return call;
}

/// The recorder knows a tied parameter by the last of its names in the module tree, and asks for
/// its placement by that one only.
void keep_last_names(const Model& model, WrapCall& call) {
  std::map<ParameterId, std::string> last;
  for (const ModuleId id : modules_in_order(model)) {
    const Module& m = model.at(id);
    for (const OwnedParameter& p : m.parameters)
      last[p.id] = m.name.empty() ? p.name : m.name + "." + p.name;
  }
  std::erase_if(call.placement, [&](const auto& entry) {
    return last.at(find_parameter(model, entry.first)) != entry.first;
  });
}

}  // namespace

Fsdp2Case read_fsdp2_case(const Json& golden_case) {
  Fsdp2Case c;
  c.spec = read_model_spec(golden_case);
  c.rank = golden_case.at("rank").get<std::int64_t>();
  ParallelConfig& config = c.config;
  config.framework = FrameworkKind::kFsdp2;
  config.shard = golden_case.at("mesh").at("shard").get<std::int64_t>();
  config.replicate = golden_case.at("mesh").value("replicate", std::int64_t{1});
  config.wrap.kind = WrapPolicy::Kind::kCalls;
  for (const Json& entry : golden_case.at("wrap")) config.calls.push_back(read_call(entry));
  for (WrapCall& call : config.calls) keep_last_names(c.spec.model, call);
  config.precision = MixedPrecision{};
  config.checkpoint_modules =
      golden_case.value("activation_checkpoint", std::vector<std::string>{});
  config.checkpoint =
      config.checkpoint_modules.empty() ? CheckpointKind::kNone : CheckpointKind::kModules;
  config.optimizer = OptimizerKind::kNone;
  config.clip = false;
  config.loss = LossKind::kMeanSquareOutput;
  const Json grad_dtypes = golden_case.value("grad_dtype", Json::object());
  for (const auto& [name, dtype] : grad_dtypes.items()) {
    fsdp2::GradDtypePolicy policy;
    policy.set = true;
    if (!dtype.is_null()) policy.dtype = dtype_of(dtype);
    c.extras.grad_dtype.emplace(find_parameter(c.spec.model, name), policy);
  }
  c.extras.non_contiguous = c.spec.non_contiguous;
  return c;
}

}  // namespace foreshard
