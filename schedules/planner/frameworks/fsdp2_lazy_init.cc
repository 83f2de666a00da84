// What the first forward of a root does to everything under it.

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "models/describe.h"
#include "schedules/planner/frameworks/fsdp2.h"
#include "schedules/planner/frameworks/fsdp2_error.h"
#include "schedules/planner/id_set.h"

namespace foreshard::fsdp2 {

void Fsdp2::lazy_init_root(State& root) {
  if (root.is_root) return;
  const Model& model = host_->model();
  if (root.modules.size() > 1) {
    throw Fsdp2Error(Refusal::kRuntimeError, state_name(model, root),
                     "the root must be a single module, not a grouped call",
                     "wrap the model itself last");
  }
  for (const ModuleId m : modules_in_order(model, root.modules[0])) {
    const State* state = wrapping_->state_of(m);
    if (state == nullptr || state == &root || !state->context->manual_finalization) continue;
    throw Fsdp2Error(Refusal::kRuntimeError, model.at(m).name,
                     "finalises backward by hand, but is not the root",
                     "set_manual_backward_finalization of the root module");
  }
  root.is_root = true;
  std::set<State*> visited;
  for (const ModuleId m : modules_in_order(model, root.modules[0])) {
    State* state = wrapping_->state_of(m);
    if (state == nullptr) continue;
    if (m != root.modules[0]) {
      if (visited.count(state) == 0 && state->is_root) {
        throw Fsdp2Error(Refusal::kRuntimeError, model.at(m).name,
                         "ran forward on its own before the root did", "run the root module first");
      }
      state->is_root = false;
    }
    if (visited.insert(state).second) root.context->all_states.push_back(state);
  }
  if (root.auto_reshard) {
    for (const auto& group : root.groups) group->post_forward_mesh = nullptr;
  }
  share_context(root);
  refuse_shared_parameters(root);
  for (State* state : root.context->all_states) {
    for (const auto& group : state->groups) lazy_init_group(*group);
  }
}

void Fsdp2::share_context(State& root) {
  CommContext& comm = *root.comm;
  ProgramBuilder& program = host_->program();
  comm.copy_in = program.add_stream("all_gather_copy_in", -1);
  comm.gather = program.add_stream("all_gather", -1);
  comm.reduce = program.add_stream("reduce_scatter", -1);
  comm.all_reduce = program.add_stream("all_reduce", 0);
  comm.initialised = true;
  for (State* state : root.context->all_states) {
    state->context = root.context;
    state->comm = root.comm;
    int index = 0;
    for (const auto& group : state->groups) {
      group->comm = root.comm;
      group->index = index++;
      group->group_count = static_cast<int>(state->groups.size());
      comm.max_reduce_inputs =
          std::max(comm.max_reduce_inputs, group->switches.reduce_scatter_max_inputs);
    }
  }
}

void Fsdp2::refuse_shared_parameters(const State& root) const {
  IdSet<ParameterId> seen;
  for (const State* state : root.context->all_states) {
    for (const auto& group : state->groups) {
      for (const ShardedParameter& p : group->parameters) {
        if (seen.insert(p.id)) continue;
        throw Fsdp2Error(Refusal::kValueError, p.name, "is shared with a parameter of another unit",
                         "wrap the modules that share it in one call");
      }
    }
  }
}

namespace {

/// Several dtypes, or the one that all have.
struct CommonDType {
  bool any = false, several = false;
  std::optional<DType> value;
  void add(std::optional<DType> d) {
    several = several || (any && d != value);
    any = true;
    value = d;
  }
  bool one() const { return any && !several; }
};

/// That of the policies of those that take gradients; none where nothing does and the others
/// differ.
std::optional<DType> reduce_dtype_of(const Model& model, const ParamGroup& group) {
  CommonDType originals, reduces;
  const bool any_trainable =
      std::any_of(group.parameters.begin(), group.parameters.end(),
                  [](const ShardedParameter& p) { return p.trainable; });
  for (const ShardedParameter& p : group.parameters) {
    if (any_trainable ? !p.trainable : !is_floating(p.original)) continue;
    originals.add(p.original);
    reduces.add(p.policy.reduce);
  }
  if (any_trainable && !originals.one()) {
    throw Fsdp2Error(Refusal::kAssertionError, unit_name(model, group),
                     "its trainable parameters have different dtypes",
                     "put them into different units");
  }
  if (any_trainable && !reduces.one()) {
    throw Fsdp2Error(Refusal::kAssertionError, unit_name(model, group),
                     "its trainable parameters have different reduce dtypes");
  }
  return originals.one() && reduces.one() ? reduces.value : std::nullopt;
}

bool has_wider_gradient(const ShardedParameter& p) {
  const auto grad = p.unsharded_grad_dtype();
  return grad && is_floating(p.compute_dtype()) && is_floating(*grad) &&
         size_of(*grad) > size_of(p.compute_dtype());
}

/// Parameters of one gradient dtype together, dtypes in the order of their first.
void order_by_gradient_dtype(ParamGroup& group) {
  group.reduce_order.clear();
  group.reduce_order.reserve(group.parameters.size());
  std::vector<std::optional<DType>> dtypes;
  for (const ShardedParameter& p : group.parameters) {
    if (std::find(dtypes.begin(), dtypes.end(), p.sharded_grad_dtype()) == dtypes.end())
      dtypes.push_back(p.sharded_grad_dtype());
  }
  for (const auto& dtype : dtypes) {
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      if (group.parameters[i].sharded_grad_dtype() == dtype) group.reduce_order.push_back(i);
    }
  }
}

}  // namespace

void Fsdp2::lazy_init_group(ParamGroup& group) {
  for (ShardedParameter& p : group.parameters) p.resolve_dtypes();
  group.reduce_dtype = reduce_dtype_of(host_->model(), group);
  group.wider_gradients.clear();
  group.wider_gradients.reserve(group.parameters.size());
  for (std::size_t i = 0; i < group.parameters.size(); ++i)
    if (has_wider_gradient(group.parameters[i])) group.wider_gradients.push_back(i);
  order_by_gradient_dtype(group);
  group.initialised = true;
}

}  // namespace foreshard::fsdp2
