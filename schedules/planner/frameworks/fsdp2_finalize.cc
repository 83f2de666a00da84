// Backward finalised by the script instead of by its last callback
// (FSDPModule.set_manual_backward_finalization, finalize_backward, GradientReductionHandle.wait):
// gradients of units that a backward left unreduced are reduced here.

#include "schedules/planner/frameworks/fsdp2.h"
#include "schedules/planner/frameworks/fsdp2_error.h"

namespace foreshard::fsdp2 {

void Fsdp2::set_manual_backward_finalization(ModuleId m, bool on) {
  State& state = state_at(m);
  if (state.is_root && !*state.is_root) {
    throw Fsdp2Error(Refusal::kRuntimeError, state_name(host_->model(), state),
                     "finalises backward by hand, but is not the root",
                     "set_manual_backward_finalization of the root module");
  }
  const std::optional<bool>& active = state.context->active_manual_finalization;
  if (active && *active != on) {
    throw Fsdp2Error(Refusal::kRuntimeError, state_name(host_->model(), state),
                     "changes how backward is finalised between its start and its end",
                     "set it before backward");
  }
  state.context->manual_finalization = on;
}

void Fsdp2::check_finalizable(const State& state) const {
  const StateContext& context = *state.context;
  const auto refuse = [&](const std::string& place, const std::string& message,
                          const std::string& hint) {
    throw Fsdp2Error(Refusal::kRuntimeError, place, message, hint);
  };
  const std::string name = state_name(host_->model(), state);
  if (context.reduction_pending)
    refuse(name, "is finalised again before the last reduction was waited for", "wait() first");
  if (!*state.is_root) refuse(name, "is not the root", "finalize_backward of the root module");
  if (!context.active_manual_finalization.value_or(context.manual_finalization)) {
    refuse(name, "finalises its backward by itself",
           "set_manual_backward_finalization(True) before forward");
  }
  for (const State* each : context.all_states) {
    for (const auto& group : each->groups) {
      const std::string unit = unit_name(host_->model(), *group);
      if (group->runtime.partial_output) {
        refuse(unit, "holds gradients that were reduce-scattered but not all-reduced",
               "automatic finalisation");
      }
      const GroupSwitches& on = group->switches;
      if (group->post_backward_pending && on.reduce_grads && group->mesh->replicated &&
          !on.all_reduce_grads) {
        refuse(unit, "would be finalised without its all-reduce",
               "set_requires_all_reduce(True) before finalize_backward");
      }
    }
  }
}

void Fsdp2::finalize_backward(ModuleId m, bool async) {
  State& state = state_at(m);
  if (!state.is_root) return;  // Before the first forward: nothing to do.
  check_finalizable(state);
  StateContext& context = *state.context;
  for (auto it = context.all_states.rbegin(); it != context.all_states.rend(); ++it) {
    for (auto g = (*it)->groups.rbegin(); g != (*it)->groups.rend(); ++g) {
      ParamGroup& group = **g;
      if (group.post_backward_pending)
        reducer_->post_backward(group, false);
      else if (group.switches.reshard_after_backward)
        gatherer_->reshard(group);
      group.training = TrainingState::kIdle;
    }
  }
  if (async)
    context.reduction_pending = true;
  else
    end_backward(state);
}

void Fsdp2::wait_for_gradient_reduction(ModuleId m) {
  State& state = state_at(m);
  if (!state.context->reduction_pending) return;
  end_backward(state);
  state.context->reduction_pending = false;
}

}  // namespace foreshard::fsdp2
