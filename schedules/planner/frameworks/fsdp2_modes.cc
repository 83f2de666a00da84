// Switches that a training script can set on wrapped modules.

#include <algorithm>

#include "models/describe.h"
#include "schedules/planner/frameworks/fsdp2.h"
#include "schedules/planner/frameworks/fsdp2_error.h"

namespace foreshard::fsdp2 {

/// Calls change(group) on the groups of a module, or of every wrapped module under it.
template <typename Change>
void Fsdp2::for_groups(ModuleId m, bool recurse, Change change) {
  state_at(m);
  const Model& model = wrapping_->model();
  for (const ModuleId each : recurse ? modules_in_order(model, m) : std::vector<ModuleId>{m}) {
    State* state = wrapping_->state_of(each);
    if (state == nullptr) continue;
    for (const auto& group : state->groups) change(*group);
  }
}

void Fsdp2::set_requires_gradient_sync(ModuleId m, bool on, bool recurse) {
  for_groups(m, recurse,
             [&](ParamGroup& g) { g.switches.reduce_grads = g.switches.all_reduce_grads = on; });
}

void Fsdp2::set_requires_all_reduce(ModuleId m, bool on, bool recurse) {
  for_groups(m, recurse, [&](ParamGroup& g) { g.switches.all_reduce_grads = on; });
}

void Fsdp2::set_reshard_after_forward(ModuleId m, Reshard reshard, bool recurse) {
  if (reshard.kind != Reshard::Kind::kNo && reshard.kind != Reshard::Kind::kYes) {
    throw Fsdp2Error(Refusal::kValueError, wrapping_->model().at(m).name,
                     "resharding can be switched on or off only", "true or false");
  }
  const bool on = reshard.kind == Reshard::Kind::kYes;
  const Model& model = wrapping_->model();
  for (const ModuleId each : recurse ? modules_in_order(model, m) : std::vector<ModuleId>{m}) {
    State* state = wrapping_->state_of(each);
    if (state == nullptr) continue;
    state->auto_reshard = false;
    for (const auto& group : state->groups) group->post_forward_mesh = on ? group->mesh : nullptr;
  }
}

void Fsdp2::set_reshard_after_backward(ModuleId m, bool on, bool recurse) {
  for_groups(m, recurse, [&](ParamGroup& g) { g.switches.reshard_after_backward = on; });
}

void Fsdp2::set_reduce_scatter_max_inputs(ModuleId m, std::int64_t n, bool recurse) {
  if (n < 1) {
    throw Fsdp2Error(Refusal::kValueError, wrapping_->model().at(m).name,
                     "cannot keep " + std::to_string(n) + " reduce-scatter inputs", "1 or more");
  }
  for_groups(m, recurse, [&](ParamGroup& g) { g.switches.reduce_scatter_max_inputs = n; });
}

void Fsdp2::set_reduce_unused(ModuleId m, bool on, bool recurse) {
  for_groups(m, recurse, [&](ParamGroup& g) { g.switches.reduce_unused = on; });
}

void Fsdp2::set_separate_reduce_group(ModuleId m, bool on, bool recurse) {
  std::vector<std::pair<GroupId, GroupId>> made;  // one new communicator for each set of ranks
  for_groups(m, recurse, [&](ParamGroup& g) {
    GroupId& separate = g.switches.separate_reduce_group;
    if (!on) {
      separate = {};
      return;
    }
    auto it = std::find_if(made.begin(), made.end(),
                           [&](const auto& entry) { return entry.first == g.mesh->shard_group; });
    if (it == made.end()) {
      const GroupId id =
          separate.valid() ? separate : host_->add_group("reduce_scatter", g.mesh->shard, 1);
      it = made.insert(made.end(), {g.mesh->shard_group, id});
    }
    separate = it->second;
  });
}

void Fsdp2::set_keep_unsharded_storage(ModuleId m, bool on, bool recurse) {
  for_groups(m, recurse, [&](ParamGroup& g) {
    for (ShardedParameter& p : g.parameters) p.keep_unsharded_storage = on;
  });
}

void Fsdp2::set_unshard_async(ModuleId m, bool on) {
  for_groups(m, true, [&](ParamGroup& g) { g.switches.unshard_async = on; });
}

void Fsdp2::set_divide_factor(ModuleId m, double factor) {
  for_groups(m, false, [&](ParamGroup& g) { g.switches.divide_factor = factor; });
}

void Fsdp2::set_force_sum(ModuleId m, bool on) {
  for_groups(m, false, [&](ParamGroup& g) { g.switches.force_sum = on; });
}

void Fsdp2::set_unshard_in_backward(ModuleId m, bool on) {
  for_groups(m, false, [&](ParamGroup& g) { g.switches.unshard_in_backward = on; });
}

void Fsdp2::set_all_reduce_hook(ModuleId m) {
  if (state_at(m).groups.size() > 1) {
    throw Fsdp2Error(Refusal::kValueError, wrapping_->model().at(m).name,
                     "an all-reduce hook needs a unit with one mesh");
  }
  for_groups(m, false, [](ParamGroup& g) { g.switches.all_reduce_hook = true; });
}

void Fsdp2::set_is_last_backward(ModuleId m, bool on) {
  state_at(m).context->is_last_backward = on;
}

void Fsdp2::set_forward_prefetch(ModuleId m, const std::vector<ModuleId>& targets) {
  std::vector<State*> states;
  for (const ModuleId t : targets) states.push_back(&state_at(t));
  state_at(m).forward_prefetch = std::move(states);
}

void Fsdp2::set_backward_prefetch(ModuleId m, const std::vector<ModuleId>& targets) {
  std::vector<State*> states;
  for (const ModuleId t : targets) states.push_back(&state_at(t));
  state_at(m).backward_prefetch = std::move(states);
}

void Fsdp2::unshard(ModuleId m, bool async) {
  State& state = state_at(m);
  for (const auto& group : state.groups) {
    lazy_init_group(*group);
    gatherer_->unshard(*group, async);
  }
  if (async) return;
  for (const auto& group : state.groups) gatherer_->wait(*group);
}

void Fsdp2::reshard(ModuleId m) {
  for (const auto& group : state_at(m).groups) gatherer_->reshard(*group);
}

namespace {

/// Sets the object that the module has now: gathered ones take the sharded parameter's setting
/// again when they are gathered next.
void set_registered(ParamGroup& group, std::size_t i, bool on) {
  if (group.sharded == ShardedState::kSharded) group.parameters[i].trainable = on;
  if (group.sharded == ShardedState::kUnsharded)
    group.runtime.parameters[i].unsharded->requires_grad = on;
}

}  // namespace

void Fsdp2::set_requires_grad(ModuleId m, bool on) {
  const Model& model = wrapping_->model();
  for (const ModuleId each : modules_in_order(model, m)) {
    for (const OwnedParameter& owned : model.at(each).parameters) {
      if (plain_[owned.id.value]) plain_[owned.id.value]->requires_grad = on;
      for (ParamGroup* group : wrapping_->groups()) {
        for (std::size_t i = 0; i < group->parameters.size(); ++i) {
          if (group->parameters[i].id == owned.id) set_registered(*group, i, on);
        }
      }
    }
  }
}

}  // namespace foreshard::fsdp2
