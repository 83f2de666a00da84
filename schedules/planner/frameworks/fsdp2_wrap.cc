#include "schedules/planner/frameworks/fsdp2_wrap.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/describe.h"
#include "schedules/planner/frameworks/fsdp2_error.h"
#include "schedules/planner/id_set.h"

namespace foreshard::fsdp2 {
namespace {

ParameterId parameter_named(const Model& model, const std::string& name) {
  const std::size_t dot = name.rfind('.');
  const ModuleId owner = model.find_module(dot == std::string::npos ? "" : name.substr(0, dot));
  if (!owner.valid()) return {};
  const std::string local = dot == std::string::npos ? name : name.substr(dot + 1);
  for (const OwnedParameter& p : model.at(owner).parameters) {
    if (p.name == local) return p.id;
  }
  return {};
}

template <typename Value>
std::map<ParameterId, Value> by_parameter(const Model& model,
                                          const std::map<std::string, Value>& by_name) {
  std::map<ParameterId, Value> result;
  for (const auto& [name, value] : by_name) {
    const ParameterId id = parameter_named(model, name);
    if (id.valid()) result.emplace(id, value);
  }
  return result;
}

std::string place_of(const WrapCall& call) {
  std::string text;
  for (const std::string& m : call.modules)
    text += (text.empty() ? "" : ",") + (m.empty() ? "(root)" : m);
  return text;
}

std::string full_name(const Model& model, ModuleId module, const std::string& local) {
  const std::string& prefix = model.at(module).name;
  return prefix.empty() ? local : prefix + "." + local;
}

}  // namespace

std::string unit_name(const Model& model, const ParamGroup& group) {
  std::string name;
  for (const ModuleId m : group.modules) {
    if (!name.empty()) name += ",";
    name += model.at(m).name.empty() ? "(root)" : model.at(m).name;
  }
  if (group.group_count > 1) name += "#" + std::to_string(group.index);
  return name;
}

std::string state_name(const Model& model, const State& state) {
  std::string name;
  for (const ModuleId m : state.modules) {
    if (!name.empty()) name += ",";
    name += model.at(m).name.empty() ? "(root)" : model.at(m).name;
  }
  return name;
}

// ------------------------------------------------------------------------------------------------
// meshes

Meshes::Meshes(std::int64_t shard, std::int64_t replicate, std::int64_t rank,
               std::vector<Group>& groups)
    : shard_(shard), replicate_(replicate), rank_(rank), groups_(groups) {
  Mesh mesh;
  mesh.shard = shard;
  mesh.shard_rank = rank % shard;
  mesh.replicate = replicate;
  mesh.replicated = replicate > 1;
  mesh.shard_group = add_group("shard", shard, 1);
  if (mesh.replicated) mesh.replicate_group = add_group("replicate", replicate, shard);
  whole_ = &add(mesh);
}

GroupId Meshes::add_group(const std::string& name, std::int64_t size, std::int64_t stride) {
  groups_.push_back({name, size, stride});
  return GroupId(static_cast<std::uint32_t>(groups_.size() - 1));
}

Mesh& Meshes::add(Mesh mesh) {
  all_.push_back(std::make_unique<Mesh>(mesh));
  return *all_.back();
}

Mesh& Meshes::consecutive(std::int64_t size) {
  Mesh*& found = consecutive_[size];
  if (found == nullptr) {
    Mesh mesh;
    mesh.shard = size;
    mesh.shard_rank = rank_ % size;
    mesh.shard_group = add_group("shard_" + std::to_string(size), size, 1);
    found = &add(mesh);
  }
  return *found;
}

Mesh& Meshes::post_forward(std::int64_t size) {
  Mesh mesh;
  mesh.shard = size;
  mesh.shard_rank = rank_ % size;
  mesh.shard_group = add_group("post_forward_" + std::to_string(size), size, 1);
  return add(mesh);
}

// ------------------------------------------------------------------------------------------------
// wrapping

std::vector<ModuleId> Wrapping::root_modules(const WrapCall& call) const {
  std::vector<ModuleId> listed;
  for (const std::string& name : call.modules) {
    const ModuleId id = model_.find_module(name);
    if (!id.valid()) throw Fsdp2Error(Refusal::kAttributeError, name, "no module of this name");
    listed.push_back(id);
  }
  for (const ModuleId id : listed) {
    if (state_of(id) != nullptr) {
      throw Fsdp2Error(Refusal::kAssertionError, model_.at(id).name, "is wrapped twice",
                       "wrap each module once");
    }
  }
  if (listed.size() == 1) {
    if (!call.as_list && !model_.at(listed[0]).has_forward) {
      throw Fsdp2Error(Refusal::kValueError, model_.at(listed[0]).name,
                       "a container without a forward cannot be a unit", "wrap its children");
    }
    return listed;
  }
  std::vector<ModuleId> roots;
  for (const ModuleId candidate : listed) {
    const bool inside = std::any_of(listed.begin(), listed.end(), [&](ModuleId other) {
      if (other == candidate) return false;
      const auto below = modules_in_order(model_, other);
      return std::find(below.begin(), below.end(), candidate) != below.end();
    });
    if (!inside) roots.push_back(candidate);
  }
  return roots;
}

std::vector<ModuleId> Wrapping::managed_modules(const std::vector<ModuleId>& roots) const {
  std::vector<ModuleId> order;
  std::vector<std::uint8_t> visited(model_.modules.size());
  const auto visit = [&](const auto& self, ModuleId m) -> void {
    if (state_of(m) != nullptr && std::find(roots.begin(), roots.end(), m) == roots.end()) return;
    visited[m.value] = 1;
    for (const ChildModule& c : model_.at(m).children) {
      if (visited[c.id.value] == 0) self(self, c.id);
    }
    order.push_back(m);
  };
  for (const ModuleId root : roots) visit(visit, root);
  return order;
}

Mesh* Wrapping::post_forward_mesh(const Reshard& reshard, Mesh& mesh, const std::string& place) {
  switch (reshard.kind) {
    case Reshard::Kind::kNo:
      return nullptr;
    case Reshard::Kind::kDefault:
    case Reshard::Kind::kYes:
      return &mesh;
    case Reshard::Kind::kGroup:
      break;
  }
  if (reshard.group < 1 || reshard.group > mesh.shard || mesh.shard % reshard.group != 0) {
    throw Fsdp2Error(Refusal::kValueError, place,
                     fmt::format("cannot reshard after forward to {} ranks: the shard group has {}",
                                 reshard.group, mesh.shard),
                     "a divisor of the shard group's size");
  }
  if (reshard.group == 1) return nullptr;
  if (reshard.group == mesh.shard) return &mesh;
  return &meshes_.post_forward(reshard.group);
}

void Wrapping::apply(const WrapCall& call, const MixedPrecision& default_precision) {
  const std::vector<ModuleId> roots = root_modules(call);
  Mesh* post_forward = post_forward_mesh(call.reshard, meshes_.whole(), place_of(call));
  const std::vector<ModuleId> managed = managed_modules(roots);

  auto state = std::make_unique<State>();
  state->index = static_cast<std::uint32_t>(states_.size());
  state->modules = roots;
  state->context = std::make_shared<StateContext>();
  state->comm = std::make_shared<CommContext>();
  state->precision = call.precision.value_or(default_precision);
  state->auto_reshard = call.reshard.kind == Reshard::Kind::kDefault;
  State& made = *state;
  states_.push_back(std::move(state));
  for (const ModuleId m : roots) state_of_[m.value] = &made;

  for (const auto& [mesh, owned] : places_by_mesh(call, managed)) {
    Mesh* after = mesh == &meshes_.whole() ? post_forward
                                           : post_forward_mesh(call.reshard, *mesh, place_of(call));
    made.groups.push_back(make_group(made, call, *mesh, after, owned));
  }
  for (const auto& group : made.groups) {
    group->wrap_index = groups_.size();
    groups_.push_back(group.get());
  }
}

/// Parameters that a call manages, by mesh in order of first appearance (F2-G-9).
std::vector<std::pair<Mesh*, std::vector<Wrapping::Place>>> Wrapping::places_by_mesh(
    const WrapCall& call, const std::vector<ModuleId>& managed) {
  std::vector<std::pair<Mesh*, std::vector<Place>>> by_mesh;
  const auto placements = by_parameter(model_, call.placement);
  std::set<ParameterId> ignored;
  IdSet<ParameterId> seen;
  for (const std::string& name : call.ignored_parameters)
    ignored.insert(parameter_named(model_, name));
  for (const ModuleId m : managed) {
    for (const OwnedParameter& p : model_.at(m).parameters) {
      if (ignored.count(p.id) != 0 || !seen.insert(p.id)) continue;
      if (model_.at(p.id).shape.empty()) {
        throw Fsdp2Error(Refusal::kValueError, full_name(model_, m, p.name),
                         "a scalar parameter cannot be sharded", "make it a vector of one element");
      }
      const auto placed = placements.find(p.id);
      Mesh* mesh = placed != placements.end() && placed->second.mesh_size > 0
                       ? &meshes_.consecutive(placed->second.mesh_size)
                       : &meshes_.whole();
      auto it = std::find_if(by_mesh.begin(), by_mesh.end(),
                             [&](const auto& entry) { return entry.first == mesh; });
      if (it == by_mesh.end()) {
        it = by_mesh.insert(by_mesh.end(), {mesh, {}});
        it->second.reserve(managed.size());
      }
      it->second.push_back({m, &p});
    }
  }
  return by_mesh;
}

std::string_view Wrapping::name_of(const Place& place) {
  const std::string &known = model_.at(place.parameter->id).name, &local = place.parameter->name,
                    &prefix = model_.at(place.module).name;
  const bool is_known = prefix.empty() ? known == local
                                       : known.size() == prefix.size() + 1 + local.size() &&
                                             known.starts_with(prefix) && known.ends_with(local);
  if (is_known) return known;
  return other_names_.emplace_back(full_name(model_, place.module, local));
}

std::unique_ptr<ParamGroup> Wrapping::make_group(State& state, const WrapCall& call, Mesh& mesh,
                                                 Mesh* post_forward,
                                                 const std::vector<Place>& owned) {
  const auto placements = by_parameter(model_, call.placement);
  const auto overrides = by_parameter(model_, call.param_dtype_override);
  auto group = std::make_unique<ParamGroup>();
  group->state = &state;
  group->modules = state.modules;
  group->mesh = &mesh;
  group->post_forward_mesh = post_forward;
  group->parameters.reserve(owned.size());
  for (const Place& place : owned) {
    ShardedParameter& p = group->parameters.emplace_back();
    p.id = place.parameter->id;
    const ParameterDef& def = model_.at(p.id);
    p.shape = Shape(def.shape);
    p.original = def.dtype;
    p.trainable = def.trainable;
    p.offload = call.offload;
    p.policy = state.precision;
    if (const auto o = overrides.find(p.id); o != overrides.end()) p.policy.param = o->second;
    if (const auto g = extras_.grad_dtype.find(p.id); g != extras_.grad_dtype.end())
      p.grad_policy = g->second;
    p.name = name_of(place);
    if (std::find(extras_.non_contiguous.begin(), extras_.non_contiguous.end(), p.name) !=
        extras_.non_contiguous.end()) {
      throw Fsdp2Error(Refusal::kNotImplementedError, p.name,
                       "a parameter that is not contiguous cannot be sharded");
    }
    if (owner_of(place.module, *place.parameter) != nullptr) {
      throw Fsdp2Error(Refusal::kRuntimeError, p.name, "is already sharded by an outer unit",
                       "wrap inner modules first");
    }
    const auto placed = placements.find(p.id);
    cut(p, mesh, placed == placements.end() ? 0 : placed->second.dim);
  }
  find_places(*group, owned);
  group->comm = std::make_shared<CommContext>();
  return group;
}

/// Every place where a module of the group uses one of its parameters, in the order of
/// named_modules(remove_duplicate=False). `owned`: those after which make_group named them.
void Wrapping::find_places(ParamGroup& group, const std::vector<Place>& owned) {
  constexpr std::size_t kElsewhere = SIZE_MAX;
  index_in_group_.resize(model_.parameters.size(), kElsewhere);
  for (std::size_t i = 0; i < group.parameters.size(); ++i)
    index_in_group_[group.parameters[i].id.value] = i;
  std::vector<std::pair<Place, std::size_t>> found;
  found.reserve(owned.size());
  const auto visit = [&](const auto& self, ModuleId m) -> void {
    for (const OwnedParameter& o : model_.at(m).parameters) {
      const std::size_t i = index_in_group_[o.id.value];
      if (i != kElsewhere && owner_of(m, o) == nullptr) found.push_back({{m, &o}, i});
    }
    for (const ChildModule& c : model_.at(m).children) self(self, c.id);
  };
  for (const ModuleId root : group.modules) visit(visit, root);
  std::vector<std::uint8_t> named(group.parameters.size());
  for (const auto& [place, i] : found) {
    ShardedParameter& p = group.parameters[i];
    if (named[i] != 0) {
      p.also.emplace_back(name_of(place));
    } else if (place.module != owned[i].module || place.parameter != owned[i].parameter) {
      p.name = name_of(place);
    }
    named[i] = 1;
    Owner& owner = owners_[places_.number(place.module, *place.parameter)];
    if (owner.group == nullptr) owner = {&group, i};
  }
  for (const ShardedParameter& p : group.parameters) index_in_group_[p.id.value] = kElsewhere;
}

}  // namespace foreshard::fsdp2
