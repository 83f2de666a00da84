// Construction of the units: inner ones first, each materialised, flattened and cut before the
// next. Allocations follow PyTorch's, so that the pools start as they do.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <set>
#include <utility>

#include "models/describe.h"
#include "schedules/planner/frameworks/fsdp1.h"
#include "schedules/planner/frameworks/fsdp1_wrap.h"
#include "schedules/planner/id_set.h"

namespace foreshard::fsdp1 {
namespace {

bool has_tied_parameters(const Model& model) {
  std::set<ParameterId> seen;
  for (const ModuleId m : modules_in_order(model)) {
    for (const OwnedParameter& p : model.at(m).parameters)
      if (!seen.insert(p.id).second) return true;
  }
  return false;
}

bool is_place(const FlatEntry& e, ModuleId m, const std::string& name) {
  return std::find(e.places.begin(), e.places.end(), std::pair(m, name)) != e.places.end();
}

ShardUnit unit_row(const Model& model, const Unit& unit) {
  const FlatLayout& layout = *unit.flat;
  ShardUnit row;
  row.name = unit.name.empty() ? "(root)" : unit.name;
  row.modules.push_back(model.at(unit.module).name);
  row.parameters.reserve(layout.entries.size());
  for (const FlatEntry& e : layout.entries)
    if (!e.is_padding()) row.parameters.push_back(e.name);
  row.numel = Elements(layout.numel);
  row.padded_numel = Elements(layout.padded);
  row.shard_numel = Elements(layout.shard);
  row.gather_dtype = layout.forward_dtype;
  row.reduce_dtype = layout.reduce_dtype;
  return row;
}

}  // namespace

void Fsdp1::initialize(Host& host) {
  host_ = &host;
  if (extras_.computes_on_cpu) host.run_backward_on_one_stream();
  shard_rank_ = host.options().rank % config_.shard;
  shard_group_ = host.add_group("shard", config_.shard, 1);
  if (config_.replicate > 1)
    replicate_group_ = host.add_group("replicate", config_.replicate, config_.shard);
  make_states();
  const Model& model = host.model();
  RankProgram& program = host.program().program();
  plain_.resize(model.parameters.size());
  program.parameters.reserve(model.parameters.size());
  for (const ParameterDef& def : model.parameters) {
    ParameterView view;
    view.name = def.name;
    view.shape = def.shape;
    view.dtype = def.dtype;
    view.trainable = def.trainable;
    view.shard_dim = -1;
    program.parameters.push_back(std::move(view));
  }
  construct_all();
  for (const auto& state : states_)
    if (state->handle) publish(*state);
  find_contested();
  if (config_.fsdp1.use_orig_params) find_outside();
  remark_on_untrained();
  list_local_parameters();
  full_precision_.resize(model.modules.size());
  for (const ModuleId m : full_precision_modules(model, config_)) {
    full_precision_[m.value] = 1;
    host.watch(m);
  }
}

void Fsdp1::make_states() {
  const Model& model = host_->model();
  state_of_module_.resize(model.modules.size());
  for (Unit& unit : wrap_units(model, config_)) {
    auto state = std::make_unique<State>();
    state->index = static_cast<int>(states_.size());
    state->is_root = unit.module == ModuleId(0);
    state->unit = std::move(unit);
    state_of_module_[state->unit.module.value] = state.get();
    if (state->unit.flat) {
      state->handle.emplace();
      state->handle->layout = &*state->unit.flat;
      state->handle->unit = host_->program().add_unit(unit_row(model, state->unit));
    }
    host_->watch(state->unit.module);
    states_.push_back(std::move(state));
  }
}

/// Children before parents. Tied weights would be untied by materialising module by module: such
/// models are made whole.
void Fsdp1::construct_all() {
  const Model& model = host_->model();
  WholeParameters whole;
  whole.tensors.resize(model.parameters.size());
  whole.units.resize(model.parameters.size());
  for (const auto& state : states_) {
    if (!state->handle) continue;
    for (const FlatEntry& e : state->handle->layout->entries)
      if (!e.is_padding()) ++whole.units[e.id.value];
  }
  std::vector<SymTensor> replaced;  // Tied weights are made twice and tied again.
  IdSet<ModuleId> seen;
  const bool tied = has_tied_parameters(model);
  const std::function<void(ModuleId)> materialize = [&](ModuleId m) {
    if (!seen.insert(m)) return;
    for (const ChildModule& c : model.at(m).children) materialize(c.id);
    for (const OwnedParameter& p : model.at(m).parameters) {
      const ParameterDef& def = model.at(p.id);
      SymTensor t = host_->empty(Shape(def.shape), def.dtype, BufferCategory::kParameter);
      SymTensor& made = whole.tensors[p.id.value];
      (made ? replaced.emplace_back() : made) = std::move(t);
    }
    for (std::size_t b = 0; b < model.at(m).buffers.size(); ++b)
      host_->buffer(model.at(m), static_cast<std::int64_t>(b));
  };
  if (tied) materialize(ModuleId(0));
  replaced.clear();
  seen = {};
  const std::function<void(ModuleId)> visit = [&](ModuleId m) {
    if (!seen.insert(m)) return;
    for (const ChildModule& c : model.at(m).children) visit(c.id);
    if (State* state = state_of(m)) construct(*state, whole);
  };
  visit(ModuleId(0));
  for (const ParameterId id : ignored_parameters(model, config_)) make_plain(id);
}

/// One constructor: _materialize_with_param_init_fn in breadth-first order, FlatParamHandle,
/// shard().
void Fsdp1::construct(State& state, WholeParameters& whole) {
  const Model& model = host_->model();
  const std::vector<ParameterId> ignored = ignored_parameters(model, config_);
  std::deque<ModuleId> queue{state.unit.module};
  IdSet<ModuleId> seen;
  seen.insert(state.unit.module);
  while (!queue.empty()) {
    const ModuleId m = queue.front();
    queue.pop_front();
    for (const OwnedParameter& p : model.at(m).parameters) {
      SymTensor& made = whole.tensors[p.id.value];
      if (made || std::find(ignored.begin(), ignored.end(), p.id) != ignored.end()) continue;
      const ParameterDef& def = model.at(p.id);
      made = host_->empty(Shape(def.shape), def.dtype, BufferCategory::kParameter);
    }
    for (std::size_t b = 0; b < model.at(m).buffers.size(); ++b)
      host_->buffer(model.at(m), static_cast<std::int64_t>(b));
    for (const ChildModule& c : model.at(m).children) {
      if (state_of(c.id) == nullptr && seen.insert(c.id)) queue.push_back(c.id);
    }
  }
  if (!state.handle) return;
  make_local_shard(state);
  // Original parameters are pointed at their part one by one; else the list of them is dropped,
  // last item first. Modules of further units keep a tied one.
  const auto drop = [&](const FlatEntry& e) {
    if (e.is_padding()) return;
    if (--whole.units[e.id.value] <= 0 || config_.fsdp1.use_orig_params)
      whole.tensors[e.id.value].reset();
  };
  const std::vector<FlatEntry>& entries = state.handle->layout->entries;
  if (config_.fsdp1.use_orig_params) std::for_each(entries.begin(), entries.end(), drop);
  place_local_shard(state);
  if (!config_.fsdp1.use_orig_params) std::for_each(entries.rbegin(), entries.rend(), drop);
  make_flat_parameter(state);
}

/// The program's table of parameters, their initial values, and what the modules see before the
/// first forward: views of a storage that is not there.
void Fsdp1::publish(State& state) {
  Handle& h = *state.handle;
  RankProgram& program = host_->program().program();
  for (std::size_t i = 0; i < h.layout->entries.size(); ++i) {
    const FlatEntry& e = h.layout->entries[i];
    if (e.is_padding()) continue;
    const SymTensor& whole = state.unit.sharded() ? h.full : h.local_shard;
    if (!h.views[i]) {
      h.views[i] = host_->view_as(whole, Shape(e.shape), e.offset);
      h.views[i]->dtype = h.layout->dtype;  // That of the flat parameter as it was built.
    }
    host_->set_parameter(e.id, h.views[i]);
    const FlatLayout::Part part = h.layout->part_of(e, shard_rank_);
    std::uint32_t index = e.id.value;
    if (program.parameters[index].elements > 0 || program.parameters[index].shard_dim == 0) {
      index = static_cast<std::uint32_t>(
          program.parameters.size());  // Stored by another unit too (F1-G-6).
      program.parameters.push_back(program.parameters[e.id.value]);
    }
    ParameterView& view = program.parameters[index];
    view.elements = part.numel;
    view.first_element = part.first;
    view.shard_dim = state.unit.sharded() ? 0 : -1;
    view.local = {};
    if (part.numel == 0) continue;
    const SymTensor local = host_->view_as(h.local_shard, {part.numel}, part.offset);
    view.local = host_->id_of(local);
    host_->launch(OpKind::kInitialize, {}, {local}, {static_cast<double>(index)});
  }
}

void Fsdp1::make_plain(ParameterId id) {
  const ParameterDef& def = host_->model().at(id);
  SymTensor& t = plain_[id.value];
  t = host_->empty(Shape(def.shape), def.dtype, BufferCategory::kParameter);
  t->requires_grad = def.trainable;
  ParameterView& view = host_->program().program().parameters[id.value];
  view.elements = def.numel();
  view.local = host_->id_of(t);
  host_->launch(OpKind::kInitialize, {}, {t}, {static_cast<double>(id.value)});
  host_->set_parameter(id, t);
}

void Fsdp1::remark_on_untrained() {
  if (config_.shard == 1 && config_.replicate > 1)
    host_->remark(
        "the shard group has one rank: FSDP1 makes every unit NO_SHARD over it and never reduces "
        "the "
        "copies with each other, as in PyTorch; --framework ddp does");
  if (config_.offload == OffloadKind::kParameters && config_.accumulate > 1 &&
      config_.sync_each_micro_batch)
    host_->remark(
        "FSDP1 does not support accumulation outside no_sync() with CPU offload, as PyTorch's "
        "documentation says: gradients are not those of the whole step; --sync-each-micro-batch "
        "no");
}

void Fsdp1::find_contested() {
  std::vector<std::uint32_t> units(host_->model().parameters.size());
  const auto for_entries = [&](auto f) {
    for (const auto& state : states_) {
      if (!state->handle) continue;
      for (std::size_t i = 0; i < state->handle->layout->entries.size(); ++i) {
        if (!state->handle->layout->entries[i].is_padding()) f(*state, i);
      }
    }
  };
  for_entries([&](State& s, std::size_t i) { ++units[s.handle->layout->entries[i].id.value]; });
  for_entries([&](State& s, std::size_t i) {
    const FlatEntry& e = s.handle->layout->entries[i];
    if (units[e.id.value] < 2) return;
    for (const auto& [module, name] : e.places) {
      contested_.push_back({module, {&s, i}});
      host_->watch(module);
    }
  });
  for (std::size_t p = 0; p < units.size(); ++p) {
    if (units[p] < 2) continue;
    std::vector<std::string> names;
    for_entries([&](State& s, std::size_t i) {
      if (s.handle->layout->entries[i].id.value == p)
        names.push_back(s.unit.name.empty() ? "(root)" : s.unit.name);
    });
    host_->remark(fmt::format(
        "{} is tied across the units {}: FSDP1 keeps a copy in each, and these train apart, as in "
        "PyTorch, which does not say so; one unit around all of them keeps the tie",
        host_->model().parameters[p].name, fmt::join(names, ", ")));
  }
}

void Fsdp1::find_outside() {
  const Model& model = host_->model();
  std::vector<const FlatEntry*> cut(model.parameters.size());
  for (const auto& state : states_) {
    if (!state->handle || !state->unit.sharded()) continue;
    for (const FlatEntry& e : state->handle->layout->entries)
      if (!e.is_padding()) cut[e.id.value] = &e;
  }
  for (const ModuleId m : modules_in_order(model)) {
    for (const OwnedParameter& p : model.at(m).parameters) {
      const FlatEntry* const e = cut[p.id.value];
      if (e == nullptr || is_place(*e, m, p.name)) continue;
      outside_.emplace_back(m, model.at(p.id).name);
      host_->watch(m);
    }
  }
}

/// model.parameters(): modules before their children. A unit's flat parameter is registered on its
/// module after what stays there.
void Fsdp1::list_local_parameters() {
  const Model& model = host_->model();
  std::set<const SymTensorImpl*> seen;
  const auto add = [&](ParameterId id, const SymTensor& t, std::int64_t numel) {
    if (t && t->requires_grad && seen.insert(t.get()).second)
      local_parameters_.push_back({id, t, numel});
  };
  std::vector<std::pair<std::pair<ModuleId, std::string>, const OriginalParameter*>> places;
  for (const auto& state : states_) {
    if (!state->handle) continue;
    for (std::size_t i = 0; i < state->handle->originals.size(); ++i) {
      for (const auto& place : state->handle->layout->entries[i].places)
        places.emplace_back(place, &state->handle->originals[i]);
    }
  }
  std::sort(places.begin(), places.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const ModuleId m : modules_in_order(model)) {
    for (const OwnedParameter& p : model.at(m).parameters) {
      add(p.id, plain_[p.id.value], model.at(p.id).numel());
      const std::pair<ModuleId, std::string> key{m, p.name};
      const auto it = std::lower_bound(places.begin(), places.end(), key,
                                       [](const auto& a, const auto& b) { return a.first < b; });
      if (it != places.end() && it->first == key)
        add(p.id, it->second->parameter, it->second->parameter->numel);
    }
    const State* const state = state_of(m);
    if (state == nullptr || !state->handle || config_.fsdp1.use_orig_params) continue;
    const auto& entries = state->handle->layout->entries;
    add(entries.front().id, state->handle->flat_param, state->handle->layout->shard);
  }
}

}  // namespace foreshard::fsdp1
