// When FSDP2's hooks fire and what they do: forward (F2-F-1 .. F2-F-6), backward (F2-B-1 ..
// F2-B-8).

#include <algorithm>
#include <functional>

#include "schedules/planner/frameworks/fsdp2.h"
#include "schedules/planner/frameworks/fsdp2_error.h"
#include "schedules/planner/frameworks/fsdp2_host_time.h"

namespace foreshard::fsdp2 {

void Fsdp2::decide_root(DecisionKind kind, const State& state) {
  Decision d;
  d.kind = kind;
  d.module = state.modules[0];
  d.number = static_cast<std::int32_t>(state.index);
  host_->decide(d);
}

// ------------------------------------------------------------------------------------------------
// forward

void Fsdp2::pre_forward(Host&, ModuleId module, std::span<SymTensor> inputs) {
  State& state = state_at(module);
  if (state.modules.size() > 1 && state.modules_to_run.empty()) {
    state.modules_to_run.insert(state.modules.begin(), state.modules.end());
  }
  state_pre_forward(state, inputs);
}

void Fsdp2::post_forward(Host&, ModuleId module, std::span<SymTensor>,
                         std::span<SymTensor> outputs) {
  State& state = state_at(module);
  if (state.modules.size() == 1) return state_post_forward(state, outputs);
  if (state.modules_to_run.erase(module) != 0 && state.modules_to_run.empty())
    return state_post_forward(state, outputs);
  cast_outputs(state, outputs);
}

void Fsdp2::forward_aborted(Host&, ModuleId module) {
  // Only the hooks of grouped calls are registered to run even when the module's forward ends by an
  // exception.
  State& state = state_at(module);
  if (state.modules.size() == 1) return;
  if (state.modules_to_run.erase(module) != 0 && state.modules_to_run.empty())
    state_post_forward(state, {});
}

void Fsdp2::root_pre_forward(State& state) {
  lazy_init_root(state);
  if (state.context->forward_root != nullptr) return;
  state.context->forward_root = &state;
  CommContext& comm = *state.comm;
  host_->wait_stream(comm.copy_in, host_->stream());
  host_->wait_stream(comm.gather, host_->stream());
  decide_root(DecisionKind::kRootPreForward, state);
}

void Fsdp2::state_pre_forward(State& state, std::span<SymTensor> inputs) {
  if (state.context->reduction_pending) {
    throw Fsdp2Error(Refusal::kRuntimeError, state_name(host_->model(), state),
                     "runs forward before the reduction of the last backward was waited for",
                     "wait() of the handle that finalize_backward(async_op=True) returned");
  }
  if (state.training == TrainingState::kPreBackward) {  // recomputation inside the unit (F2-B-8)
    for (const auto& group : state.groups) {
      if (group->sharded == ShardedState::kUnsharded) continue;
      gatherer_->unshard(*group, false);
      gatherer_->wait(*group);
    }
    return cast_inputs(state, inputs);
  }
  const bool first_in_pass = state.training != TrainingState::kForward;
  state.training = TrainingState::kForward;
  if (first_in_pass) root_pre_forward(state);
  cast_inputs(state, inputs);
  for (const auto& group : state.groups) group_pre_forward(*group, inputs);
  if (!first_in_pass) return;
  for (State* target : state.forward_prefetch) {
    for (const auto& group : target->groups) prefetch(*group, false);
  }
}

void Fsdp2::group_pre_forward(ParamGroup& group, std::span<SymTensor> inputs) {
  const bool entering = group.training != TrainingState::kForward;
  group.training = TrainingState::kForward;
  spend(*host_, kPreForwardCost, group);
  gatherer_->unshard(group, group.switches.unshard_async);
  gatherer_->wait(group);
  if (!entering || !host_->grad_enabled()) return;
  std::vector<SymTensor> tensors;
  for (const SymTensor& t : inputs) {
    if (host_->requires_grad(t)) tensors.push_back(t);
  }
  if (tensors.empty()) return;
  host_->apply_function(tensors, static_cast<std::uint32_t>(group.wrap_index));
  auto next = tensors.begin();
  for (SymTensor& t : inputs) {
    if (host_->requires_grad(t)) t = *next++;
  }
}

void Fsdp2::state_post_forward(State& state, std::span<SymTensor> outputs) {
  if (state.training == TrainingState::kPreBackward) return cast_outputs(state, outputs);
  for (const auto& group : state.groups) group_post_forward(*group);
  register_pre_backward(state, outputs);
  state.training = TrainingState::kIdle;
  if (state.context->forward_root == &state) {
    complete_incomplete_states(state, outputs);
    gatherer_->release_for_reuse(*state.comm);
    state.context->forward_root = nullptr;
  }
  cast_outputs(state, outputs);
}

void Fsdp2::group_post_forward(ParamGroup& group) {
  spend(*host_, kPostForwardCost, group);
  if (!host_->in_backward()) {
    gatherer_->reshard(group);
    group.post_forward_indices.push_back(group.comm->post_forward_order.size());
    group.comm->post_forward_order.push_back(&group);
  }
  group.training = TrainingState::kIdle;
}

void Fsdp2::complete_incomplete_states(State& root, std::span<SymTensor> outputs) {
  const auto& states = root.context->all_states;
  for (auto it = states.rbegin(); it != states.rend(); ++it) {
    State& state = **it;
    if (&state == &root || state.modules_to_run.empty()) continue;
    for (const auto& group : state.groups) group_post_forward(*group);
    register_pre_backward(state, outputs);
    state.training = TrainingState::kIdle;
    cast_outputs(state, outputs);
    state.modules_to_run.clear();
  }
}

void Fsdp2::cast_inputs(const State& state, std::span<SymTensor> inputs) {
  if (!state.precision.cast_forward_inputs || !state.precision.param) return;
  for (SymTensor& t : inputs) {
    if (t && is_floating(t->dtype)) t = host_->to(t, *state.precision.param);
  }
}

void Fsdp2::cast_outputs(const State& state, std::span<SymTensor> outputs) {
  if (!state.precision.output) return;
  for (SymTensor& t : outputs) {
    if (t && is_floating(t->dtype)) t = host_->to(t, *state.precision.output);
  }
}

void Fsdp2::register_pre_backward(const State& state, std::span<SymTensor> outputs) {
  if (!host_->grad_enabled()) return;
  for (const SymTensor& t : outputs) {
    if (host_->requires_grad(t)) host_->register_tensor_hook(t, state.index);
  }
}

void Fsdp2::prefetch(ParamGroup& target, bool backward) {
  Decision d;
  d.kind = DecisionKind::kPrefetch;
  d.unit = d.target = target.unit;
  d.flag = backward;
  host_->decide(d);
  const TrainingState before = target.training;
  target.training = backward ? TrainingState::kPreBackward : TrainingState::kForward;
  gatherer_->unshard(target, target.switches.unshard_async);
  target.training = before;
}

// ------------------------------------------------------------------------------------------------
// backward

void Fsdp2::on_tensor_hook(Host&, std::uint32_t payload, SymTensor&) {
  pre_backward(*wrapping_->states()[payload]);
}

void Fsdp2::on_function_backward(Host&, std::uint32_t payload) {
  reducer_->post_backward(*wrapping_->groups()[payload], false);
}

void Fsdp2::on_backward_callback(Host&, std::uint32_t payload) {
  final_callback(*wrapping_->states()[payload]);
}

void Fsdp2::pre_backward(State& state) {
  state.training = TrainingState::kPreBackward;
  if (!state.context->callback_queued) {
    StateContext& context = *state.context;
    if (!context.active_manual_finalization)
      context.active_manual_finalization = context.manual_finalization;
    context.callback_queued = true;
    host_->queue_callback(state.index);
  }
  const bool default_prefetch = state.backward_prefetch.empty();
  for (const auto& group : state.groups) group_pre_backward(*group, default_prefetch);
  for (State* target : state.backward_prefetch) {
    for (auto it = target->groups.rbegin(); it != target->groups.rend(); ++it) prefetch(**it, true);
  }
}

void Fsdp2::group_pre_backward(ParamGroup& group, bool default_prefetch) {
  if (group.training == TrainingState::kPreBackward) return;
  Decision d;
  d.kind = DecisionKind::kPreBackward;
  d.unit = group.unit;
  host_->decide(d);
  group.training = TrainingState::kPreBackward;
  spend(*host_, kPreBackwardCost, group);
  gatherer_->unshard(group, group.switches.unshard_async);
  gatherer_->wait(group);
  reducer_->set_grad_dtypes(group, true);
  if (default_prefetch) backward_prefetch(group);
}

void Fsdp2::backward_prefetch(ParamGroup& group) {
  if (group.post_forward_indices.empty()) return;
  const std::vector<ParamGroup*>& order = group.comm->post_forward_order;
  const std::size_t current = group.post_forward_indices.back();
  group.post_forward_indices.pop_back();
  if (group.group_count == 1) {
    if (current > 0) prefetch(*order[current - 1], true);
    return;
  }
  if (group.index != 1) return;
  // All groups of the unit before this one, highest index first (F2-B-4).
  const State* target = nullptr;
  for (std::size_t i = current; i-- > 0;) {
    if (order[i]->state == group.state) continue;
    if (target == nullptr) target = order[i]->state;
    if (order[i]->state != target) break;
    prefetch(*order[i], true);
  }
}

void Fsdp2::final_callback(State& state) {
  decide_root(DecisionKind::kFinalCallbackBegin, state);
  StateContext& context = *state.context;
  const bool manual = context.active_manual_finalization.value_or(false);
  context.forward_root = nullptr;
  for (State* each : context.all_states) {
    each->modules_to_run.clear();
    for (auto it = each->groups.rbegin(); it != each->groups.rend(); ++it) {
      ParamGroup& group = **it;
      if (group.training != TrainingState::kPostBackward) {
        if (manual && group.switches.reduce_grads)
          group.post_backward_pending = true;
        else
          reducer_->post_backward(group, true);
      }
      group.training = TrainingState::kIdle;
    }
    each->training = TrainingState::kIdle;
  }
  if (context.is_last_backward && !manual) {
    end_backward(state);
  } else {
    gatherer_->release_on_current_stream(*state.comm);
  }
  context.callback_queued = false;
  decide_root(DecisionKind::kFinalCallbackEnd, state);
}

void Fsdp2::end_backward(State& state) {
  decide_root(DecisionKind::kFinalize, state);
  CommContext& comm = *state.comm;
  for (const auto& [stream, event] : comm.last_post_reduce)
    host_->wait_event(host_->stream(), event);
  comm.last_post_reduce.clear();
  for (State* each : state.context->all_states) {
    for (const auto& group : each->groups) reducer_->finalize(*group);
  }
  gatherer_->release_on_current_stream(comm);
  comm.post_forward_order.clear();
  for (const CommContext::ReduceInput& input : comm.reduce_inputs) {
    if (input.held.event) host_->wait_event(input.allocation_stream, *input.held.event);
  }
  for (CommContext::ReduceInput& input : comm.reduce_inputs) {
    Decision d;
    d.kind = DecisionKind::kFreeReduceInput;
    d.unit = input.group->unit;
    d.bytes = input.held.buffer->bytes();
    host_->decide(d);
  }
  comm.reduce_inputs.clear();
  state.context->active_manual_finalization.reset();
}

}  // namespace foreshard::fsdp2
