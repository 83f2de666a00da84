// Wrapping and materialising the shards.

#include <algorithm>
#include <map>
#include <set>

#include "models/describe.h"
#include "schedules/planner/frameworks/fsdp2.h"

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

namespace {

/// model.to_empty(): children before parents, each parameter on its own; a wrapped module pads its
/// shards when all of it is there (F2-P-1, F2-P-4).
class ShardMaker {
 public:
  /// `plain`: by parameter, those of no unit.
  ShardMaker(Host& host, Wrapping& wrapping, std::vector<SymTensor>& plain)
      : host_(host),
        wrapping_(wrapping),
        plain_(plain),
        visited_(host.model().modules.size()) {}

  void visit(ModuleId m) {
    if (visited_[m.value]) return;
    visited_[m.value] = true;
    const Module& module = host_.model().at(m);
    for (const ChildModule& c : module.children) visit(c.id);
    for (const OwnedParameter& owned : module.parameters) make(m, owned);
    for (std::size_t b = 0; b < module.buffers.size(); ++b)
      host_.buffer(module, static_cast<std::int64_t>(b));
    if (State* state = wrapping_.state_of(m)) {
      for (const auto& group : state->groups) pad(*group);
    }
  }

 private:
  SymTensor empty(const ShardedParameter& p, std::int64_t numel, UnitId unit) {
    if (!p.offload)
      return host_.empty(Shape{numel}, p.original, BufferCategory::kShardedParameter, unit);
    return host_.empty_on_host(Shape{numel}, p.original, MemorySpace::kHostPinned,
                               BufferCategory::kShardedParameter, unit);
  }

  void make(ModuleId m, const OwnedParameter& owned) {
    if (const Wrapping::Owner* owner = wrapping_.owner_of(m, owned)) {
      ParameterTensors& t = owner->group->runtime.parameters[owner->index];
      const ShardedParameter& p = owner->group->parameters[owner->index];
      SymTensor made = empty(p, p.local_numel(), owner->group->unit);
      if (t.shard && padded_.count(owner->group) != 0) replaced_[&t] = t.shard;
      t.shard = std::move(made);  // A tied weight's last place wins.
      return;
    }
    SymTensor& t = plain_[owned.id.value];
    if (t) return;
    const ParameterDef& def = host_.model().at(owned.id);
    t = host_.empty(Shape(def.shape), def.dtype, BufferCategory::kParameter);
    t->requires_grad = def.trainable;
  }

  void pad(ParamGroup& group) {
    padded_.insert(&group);
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const ShardedParameter& p = group.parameters[i];
      ParameterTensors& t = group.runtime.parameters[i];
      if (!t.shard) continue;
      SymTensor padded = t.shard;
      if (t.shard->numel != p.padded_local_numel()) {
        padded = empty(p, p.padded_local_numel(), group.unit);
        host_.launch(OpKind::kFill, {}, {padded}, {0.0});
      }
      replaced_.erase(&t);
      t.shard = padded;
    }
  }

  Host& host_;
  Wrapping& wrapping_;
  std::vector<SymTensor>& plain_;
  std::vector<bool> visited_;
  std::set<const ParamGroup*> padded_;
  /// A module that was wrapped holds its shard until the tied weight's next one is in place.
  std::map<const ParameterTensors*, SymTensor> replaced_;
};

}  // namespace

void Fsdp2::make_shards() {
  plain_.resize(host_->model().parameters.size());
  ShardMaker(*host_, *wrapping_, plain_).visit(ModuleId(0));
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

}  // namespace foreshard::fsdp2
