// Wrapping, materialising the shards, and what the first forward of a root does to everything under
// it.

#include <algorithm>
#include <map>
#include <set>

#include "models/describe.h"
#include "schedules/planner/frameworks/fsdp2.h"
#include "schedules/planner/frameworks/fsdp2_error.h"
#include "schedules/planner/id_set.h"

namespace foreshard::fsdp2 {

void Fsdp2::initialize(Host& host) {
  host_ = &host;
  gatherer_.emplace(host);
  reducer_.emplace(host, *gatherer_);
  meshes_ = std::make_unique<Meshes>(config_.shard, config_.replicate, host.options().rank,
                                     host.groups());
  wrapping_ = std::make_unique<Wrapping>(host.model(), *meshes_, extras_);
  for (const WrapCall& call : wrap_calls(host.model(), config_))
    wrapping_->apply(call, config_.precision);
  mark_float8_weights();
  make_units();
  make_shards();
  publish_parameters();
  for (const auto& state : wrapping_->states()) {
    for (const ModuleId m : state->modules) host.watch(m);
  }
  apply_config();
}

void Fsdp2::make_units() {
  const Model& model = host_->model();
  for (ParamGroup* group : wrapping_->groups()) {
    ShardUnit unit;
    unit.name = unit_name(model, *group);
    const auto& siblings = group->state->groups;
    if (siblings.size() > 1) {
      const auto it = std::find_if(siblings.begin(), siblings.end(),
                                   [&](const auto& g) { return g.get() == group; });
      unit.name += "#" + std::to_string(it - siblings.begin());
    }
    for (const ModuleId m : group->modules) unit.modules.push_back(model.at(m).name);
    unit.parameters.reserve(group->parameters.size());
    for (const ShardedParameter& p : group->parameters) {
      unit.parameters.emplace_back(p.name);
      unit.numel += Elements(p.numel());
      unit.padded_numel += Elements(p.padded_numel());
      unit.shard_numel += Elements(p.padded_local_numel());
    }
    const ShardedParameter& first = group->parameters.front();
    unit.gather_dtype =
        is_floating(first.original) ? first.policy.param.value_or(first.original) : first.original;
    unit.reduce_dtype = first.unsharded_grad_dtype().value_or(first.original);
    group->unit = host_->program().add_unit(std::move(unit));
    group->runtime.parameters.resize(group->parameters.size());
  }
}

/// The order of model.to_empty(): children before parents, each parameter on its own; a wrapped
/// module pads its shards when all of it is there (F2-P-1, F2-P-4).
void Fsdp2::make_shards() {
  const Model& model = host_->model();
  plain_.resize(model.parameters.size());
  const auto empty = [&](const ShardedParameter& p, std::int64_t numel, UnitId unit) {
    if (!p.offload)
      return host_->empty(Shape{numel}, p.original, BufferCategory::kShardedParameter, unit);
    return host_->empty_on_host(Shape{numel}, p.original, MemorySpace::kHostPinned,
                                BufferCategory::kShardedParameter, unit);
  };
  // A module that was wrapped holds its shard until the tied weight's next one is in place.
  std::map<const ParameterTensors*, SymTensor> replaced;
  std::set<const ParamGroup*> placed;
  const auto pad = [&](ParamGroup& group) {
    placed.insert(&group);
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const ShardedParameter& p = group.parameters[i];
      ParameterTensors& t = group.runtime.parameters[i];
      if (!t.shard) continue;
      SymTensor padded = t.shard;
      if (t.shard->numel != p.padded_local_numel()) {
        padded = empty(p, p.padded_local_numel(), group.unit);
        host_->launch(OpKind::kFill, {}, {padded}, {0.0});
      }
      replaced.erase(&t);
      t.shard = padded;
    }
  };
  std::vector<bool> visited(model.modules.size());
  const auto visit = [&](const auto& self, ModuleId m) -> void {
    if (visited[m.value]) return;
    visited[m.value] = true;
    for (const ChildModule& c : model.at(m).children) self(self, c.id);
    for (const OwnedParameter& owned : model.at(m).parameters) {
      if (const Wrapping::Owner* owner = wrapping_->owner_of(m, owned)) {
        ParameterTensors& t = owner->group->runtime.parameters[owner->index];
        const ShardedParameter& p = owner->group->parameters[owner->index];
        SymTensor made = empty(p, p.local_numel(), owner->group->unit);
        if (t.shard && placed.count(owner->group) != 0) replaced[&t] = t.shard;
        t.shard = std::move(made);  // A tied weight's last place wins.
        continue;
      }
      SymTensor& t = plain_[owned.id.value];
      if (t) continue;
      const ParameterDef& def = model.at(owned.id);
      t = host_->empty(Shape(def.shape), def.dtype, BufferCategory::kParameter);
      t->requires_grad = def.trainable;
    }
    for (std::size_t b = 0; b < model.at(m).buffers.size(); ++b)
      host_->buffer(model.at(m), static_cast<std::int64_t>(b));
    if (State* state = wrapping_->state_of(m)) {
      for (const auto& group : state->groups) pad(*group);
    }
  };
  visit(visit, ModuleId(0));
}

/// Gives the host the parameters, and the program their table.
void Fsdp2::publish_parameters() {
  const Model& model = host_->model();
  RankProgram& program = host_->program().program();
  std::vector<SymTensor> held = plain_;
  program.parameters.reserve(model.parameters.size());
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const ParameterDef& def = model.parameters[i];
    ParameterView view;
    view.name = def.name;
    view.shape = def.shape;
    view.dtype = def.dtype;
    view.trainable = def.trainable;
    view.shard_dim = -1;
    view.elements = def.numel();
    if (plain_[i]) view.local = host_->id_of(plain_[i]);
    host_->set_parameter(ParameterId(static_cast<std::uint32_t>(i)), plain_[i]);
    program.parameters.push_back(std::move(view));
  }
  for (ParamGroup* group : wrapping_->groups()) {
    for (std::size_t i = 0; i < group->parameters.size(); ++i) {
      const ShardedParameter& p = group->parameters[i];
      ParameterTensors& t = group->runtime.parameters[i];
      t.local = host_->view_as(t.shard, p.local_shape);
      t.local->requires_grad = p.trainable;
      held[p.id.value] = t.local;
      ParameterView& view = program.parameters[p.id.value];
      view.elements = p.local_numel();
      view.local = view.elements > 0 ? host_->id_of(t.local) : TensorId();
      view.group = p.mesh->shard_group;
      view.shard_dim = p.shard_dim;
      view.first_element_per_rank = 1;
      for (int d = p.shard_dim; d < p.padded_shape.rank; ++d)
        view.first_element_per_rank *= p.padded_shape[d];
    }
  }
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (held[i] && held[i]->numel > 0)
      host_->launch(OpKind::kInitialize, {}, {held[i]}, {static_cast<double>(i)});
  }
  std::vector<bool> seen(model.parameters.size());
  for (const ModuleId m : modules_in_order(model, ModuleId(0))) {
    for (const OwnedParameter& owned : model.at(m).parameters) {
      if (!model.at(owned.id).trainable || seen[owned.id.value]) continue;
      seen[owned.id.value] = true;
      const SymTensor& local = held[owned.id.value];
      local_parameters_.push_back({owned.id, local, local->numel});
    }
  }
}

void Fsdp2::apply_config() {
  const Model& model = host_->model();
  const auto ids = [&](const std::vector<std::string>& names) {
    std::vector<ModuleId> result;
    for (const std::string& n : names) result.push_back(model.find_module(n));
    return result;
  };
  const bool root_wrapped = wrapping_->state_of(ModuleId(0)) != nullptr;
  if (config_.reduce_scatter_max_inputs != 1 && root_wrapped) {
    set_reduce_scatter_max_inputs(ModuleId(0), config_.reduce_scatter_max_inputs);
  }
  if (config_.unshard_async && root_wrapped) set_unshard_async(ModuleId(0), true);
  list_prefetches();
  for (const auto& [name, targets] : config_.forward_prefetch_lists)
    set_forward_prefetch(model.find_module(name), ids(targets));
  for (const auto& [name, targets] : config_.backward_prefetch_lists)
    set_backward_prefetch(model.find_module(name), ids(targets));
}

/// Explicit depths: each unit lists the next ones in forward order, or the ones before it; 0 in
/// backward lists the unit itself, which is there already (F2-B-3).
void Fsdp2::list_prefetches() {
  std::vector<ModuleId> units;
  for (const auto& state : wrapping_->states()) {
    if (state->modules[0] != ModuleId(0)) units.push_back(state->modules[0]);
  }
  const auto after = [&](std::size_t i, std::int64_t n) {
    const std::size_t end = std::min(units.size(), i + 1 + static_cast<std::size_t>(n));
    return std::vector<ModuleId>(units.begin() + static_cast<std::ptrdiff_t>(std::min(i + 1, end)),
                                 units.begin() + static_cast<std::ptrdiff_t>(end));
  };
  if (config_.prefetch_forward) {
    for (std::size_t i = 0; i < units.size(); ++i)
      set_forward_prefetch(units[i], after(i, *config_.prefetch_forward));
  }
  if (!config_.prefetch_backward) return;
  std::reverse(units.begin(), units.end());
  for (std::size_t i = 0; i < units.size(); ++i) {
    set_backward_prefetch(units[i], *config_.prefetch_backward == 0
                                        ? std::vector<ModuleId>{units[i]}
                                        : after(i, *config_.prefetch_backward));
  }
  if (*config_.prefetch_backward == 0 && wrapping_->state_of(ModuleId(0)) != nullptr) {
    set_backward_prefetch(ModuleId(0), {ModuleId(0)});
  }
}

// ------------------------------------------------------------------------------------------------
// first forward

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

void Fsdp2::lazy_init_group(ParamGroup& group) {
  for (ShardedParameter& p : group.parameters) p.resolve_dtypes();
  /// Several, or the one that all parameters have.
  struct Common {
    bool any = false, several = false;
    std::optional<DType> value;
    void add(std::optional<DType> d) {
      several = several || (any && d != value);
      any = true;
      value = d;
    }
    bool one() const { return any && !several; }
  } originals, reduces;
  bool any_trainable = false;
  for (const ShardedParameter& p : group.parameters) any_trainable = any_trainable || p.trainable;
  for (const ShardedParameter& p : group.parameters) {
    if (any_trainable ? !p.trainable : !is_floating(p.original)) continue;
    originals.add(p.original);
    reduces.add(p.policy.reduce);
  }
  if (any_trainable && !originals.one()) {
    throw Fsdp2Error(Refusal::kAssertionError, unit_name(host_->model(), group),
                     "its trainable parameters have different dtypes",
                     "put them into different units");
  }
  if (any_trainable && !reduces.one()) {
    throw Fsdp2Error(Refusal::kAssertionError, unit_name(host_->model(), group),
                     "its trainable parameters have different reduce dtypes");
  }
  group.reduce_dtype.reset();
  if (originals.one() && reduces.one()) group.reduce_dtype = reduces.value;
  group.wider_gradients.clear();
  group.reduce_order.clear();
  group.reduce_order.reserve(group.parameters.size());
  group.wider_gradients.reserve(group.parameters.size());
  std::vector<std::optional<DType>> dtypes;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const ShardedParameter& p = group.parameters[i];
    const auto grad = p.unsharded_grad_dtype();
    if (grad && is_floating(p.compute_dtype()) && is_floating(*grad) &&
        size_of(*grad) > size_of(p.compute_dtype())) {
      group.wider_gradients.push_back(i);
    }
    if (std::find(dtypes.begin(), dtypes.end(), p.sharded_grad_dtype()) == dtypes.end())
      dtypes.push_back(p.sharded_grad_dtype());
  }
  for (const auto& dtype : dtypes) {
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      if (group.parameters[i].sharded_grad_dtype() == dtype) group.reduce_order.push_back(i);
    }
  }
  group.initialised = true;
}

}  // namespace foreshard::fsdp2
