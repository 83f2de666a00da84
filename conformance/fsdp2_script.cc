#include "conformance/fsdp2_script.h"

#include "conformance/model_spec.h"
#include "core/json.h"
#include "models/describe.h"

namespace foreshard {

ModuleId Fsdp2Script::module(const std::string& name) const {
  const ModuleId id = model_.find_module(name);
  if (!id.valid()) throw InputError(Issue{"", name, "no module of this name", ""});
  return id;
}

std::vector<ModuleId> Fsdp2Script::targets(const Json& call) const {
  std::vector<ModuleId> wrapped;
  for (const ModuleId m : modules_in_order(model_)) {
    if (framework_.wrapping().state_of(m) != nullptr) wrapped.push_back(m);
  }
  if (call.value("each", false)) return wrapped;
  if (call.contains("module")) return {module(call.at("module").get<std::string>())};
  if (framework_.wrapping().state_of(ModuleId(0)) != nullptr) return {ModuleId(0)};
  return wrapped;
}

void Fsdp2Script::apply(const Json& call) {
  const std::string name = call.at("call").get<std::string>();
  if (name.starts_with("@")) return apply_special(name, call);
  const Json args = call.value("args", Json::array()),
             kwargs = call.value("kwargs", Json::object());
  for (const ModuleId target : targets(call)) {
    events_.add(
        {{"ev", "call"}, {"name", name}, {"module", model_.at(target).name}, {"args", args}});
    apply_to(target, name, args, kwargs);
  }
}

void Fsdp2Script::apply_to(ModuleId m, const std::string& name, const Json& args,
                           const Json& kwargs) {
  const bool recurse = kwargs.value("recurse", true);
  const auto on = [&] { return args.empty() || args.at(0).get<bool>(); };
  if (name == "set_requires_gradient_sync")
    return framework_.set_requires_gradient_sync(m, on(), recurse);
  if (name == "set_requires_all_reduce")
    return framework_.set_requires_all_reduce(m, on(), recurse);
  if (name == "set_reshard_after_backward")
    return framework_.set_reshard_after_backward(m, on(), recurse);
  if (name == "set_reshard_after_forward") {
    const Json& value = args.at(0);
    const Reshard reshard = !value.is_boolean() ? Reshard::to_group(value.get<std::int64_t>())
                            : value.get<bool>() ? Reshard::yes()
                                                : Reshard::no();
    return framework_.set_reshard_after_forward(m, reshard, recurse);
  }
  if (name == "set_reduce_scatter_max_input_buffers") {
    return framework_.set_reduce_scatter_max_inputs(m, args.at(0).get<std::int64_t>(), recurse);
  }
  if (name == "set_reduce_scatter_unused_params")
    return framework_.set_reduce_unused(m, on(), recurse);
  if (name == "set_separate_reduce_scatter_group")
    return framework_.set_separate_reduce_group(m, on(), recurse);
  if (name == "set_keep_unsharded_storage")
    return framework_.set_keep_unsharded_storage(m, on(), recurse);
  if (name == "_set_unshard_async_op") return framework_.set_unshard_async(m, on());
  if (name == "set_gradient_divide_factor" || name == "set_reduce_scatter_divide_factor") {
    return framework_.set_divide_factor(m, args.at(0).get<double>());
  }
  if (name == "set_force_sum_reduction_for_comms") return framework_.set_force_sum(m, on());
  if (name == "set_unshard_in_backward") return framework_.set_unshard_in_backward(m, on());
  if (name == "set_is_last_backward") return framework_.set_is_last_backward(m, on());
  if (name == "set_manual_backward_finalization")
    return framework_.set_manual_backward_finalization(m, on());
  if (name == "finalize_backward")
    return framework_.finalize_backward(m, kwargs.value("async_op", false));
  // Buffers then come from the communication library; order and sizes stay.
  if (name == "set_allocate_memory_from_process_group_for_comm") return;
  if (name == "unshard") return framework_.unshard(m, kwargs.value("async_op", false));
  if (name == "reshard") return framework_.reshard(m);
  throw InputError(Issue{"", name, "unknown call of a wrapped module", ""});
}

void Fsdp2Script::apply_special(const std::string& name, const Json& call) {
  const std::string target = call.at("module").get<std::string>();
  if (name == "@all_reduce_hook") return framework_.set_all_reduce_hook(module(target));
  const Json args = call.value("args", Json::array());
  events_.add({{"ev", "call"}, {"name", name}, {"module", target}, {"args", args}});
  if (name == "@wait_reduction") return framework_.wait_for_gradient_reduction(module(target));
  if (name == "@forward") return forward_alone(call);
  if (name == "@set_requires_grad")
    return framework_.set_requires_grad(module(target), args.at(0).get<bool>());
  throw InputError(Issue{"", name, "unknown special call", ""});
}

/// A submodule by itself, under no_grad.
void Fsdp2Script::forward_alone(const Json& call) {
  Host& host = run_.host();
  const ModuleId m = module(call.at("module").get<std::string>());
  std::vector<SymTensor> inputs, outputs(model_.at(m).outputs.size());
  for (const Json& input : call.at("inputs")) {
    const auto shape = input.at("shape").get<std::vector<std::int64_t>>();
    const DType dtype = input.at("kind") == "tokens"
                            ? DType::kInt64
                            : dtype_of(input.value("dtype", Json("float32")));
    inputs.push_back(
        host.empty(Shape(std::span<const std::int64_t>(shape)), dtype, BufferCategory::kInput));
  }
  const NoGradGuard guard(host);
  host.call(m, inputs, outputs);
}

void Fsdp2Script::apply_prefetch(const Json& lists) {
  for (const char* direction : {"forward", "backward"}) {
    const Json by_unit = lists.value(direction, Json::object());
    for (const auto& [name, names] : by_unit.items()) {
      std::vector<ModuleId> targets;
      for (const Json& t : names) targets.push_back(module(t.get<std::string>()));
      if (direction[0] == 'f') {
        framework_.set_forward_prefetch(module(name), targets);
      } else {
        framework_.set_backward_prefetch(module(name), targets);
      }
    }
  }
}

}  // namespace foreshard
