// When FSDP1's hooks fire and what they do (_runtime_utils.py, _exec_order_utils.py): F1-S-2 ..
// F1-S-5, F1-L-*, F1-PF-*, F1-B-*.

#include <algorithm>
#include <utility>

#include "schedules/planner/frameworks/fsdp1.h"
#include "schedules/planner/host/host_refusal.h"

namespace foreshard::fsdp1 {
namespace {

/// Payloads of tensor hooks: a unit's pre-backward, or one of the hooks on inputs.
constexpr std::uint32_t kInputHook = 1u << 31;

/// Free events that may wait before an unshard syncs the host with the oldest (_FreeEventQueue).
constexpr std::size_t kMostFreeEvents = 2;

/// Host time of the hooks, us (docs/host-time.md): constant and per original parameter, forward and
/// backward.
constexpr double kForwardTime = 380, kForwardTimeEach = 9, kBackwardTime = 430,
                 kBackwardTimeEach = 28;

}  // namespace

// ------------------------------------------------------------------------------------------------
// forward

void Fsdp1::pre_forward(Host&, ModuleId module, std::span<SymTensor> inputs) {
  if (State* const state = state_of(module)) unit_pre_forward(*state, inputs);
  for (const auto& [m, stored] : contested_) {
    if (m != module) continue;
    const Handle& h = *stored.first->handle;
    host_->set_parameter(h.layout->entries[stored.second].id, h.views[stored.second]);
  }
  for (const auto& [m, parameter] : outside_) {
    if (m != module) continue;
    throw HostRefusal(parameter,
                      "is tied across units: " + host_->model().at(m).name +
                          " uses it while it is sharded, since another unit stores it",
                      "one unit around all of them");
  }
  if (!full_precision_[module.value]) return;
  DType from = DType::kFloat32;
  for (const SymTensor& t : inputs) {
    if (t && is_floating(t->dtype) && t->dtype != DType::kFloat32) from = t->dtype;
  }
  casts_.emplace_back(module, from);
  cast_floating(inputs, DType::kFloat32);
}

void Fsdp1::unit_pre_forward(State& state, std::span<SymTensor> inputs) {
  if (!initialized_) lazy_init();
  if (state.is_root) root_pre_forward(state, inputs);
  emit(EventKind::kPreForward, state, host_->in_backward());
  // Recomputation inside the unit: inputs are in the low precision already (F1-CK).
  if (!state.handle || state.handle->state == TrainingState::kBackwardPre) return;
  record_pre_forward(state);
  state.handle->state = TrainingState::kForward;
  pre_forward_unshard(state);
  if (state.unit.cast_forward_inputs && state.unit.precision.param) {
    cast_floating(inputs, *state.unit.precision.param);
  }
  register_post_backward(state, inputs);
}

void Fsdp1::post_forward(Host&, ModuleId module, std::span<SymTensor>,
                         std::span<SymTensor> outputs) {
  if (full_precision_[module.value] && !casts_.empty() && casts_.back().first == module) {
    if (casts_.back().second != DType::kFloat32) cast_floating(outputs, casts_.back().second);
    casts_.pop_back();
  }
  State* const state = state_of(module);
  if (state == nullptr) return;
  emit(EventKind::kPostForward, *state, host_->in_backward());
  if (state->handle && state->handle->state == TrainingState::kBackwardPre) return;
  record_post_forward(*state);
  if (state->handle) reshard(*state, !state->is_root && state->unit.reshards_after_forward());
  register_pre_backward(*state, outputs);
  if (state->handle) state->handle->state = TrainingState::kIdle;
}

/// PyTorch's exception passes the hooks: nothing is resharded.
void Fsdp1::forward_aborted(Host&, ModuleId module) {
  if (!casts_.empty() && casts_.back().first == module) casts_.pop_back();
}

void Fsdp1::root_pre_forward(State& root, std::span<SymTensor> inputs) {
  if (config_.fsdp1.forward_prefetch) {
    for (const auto& state : states_) {
      if (!state->handle) continue;
      state->handle->needs_pre_forward_unshard = true;
      state->handle->prefetched = false;
    }
  }
  wait(unshard_stream_, host_->stream());
  wait(pre_unshard_stream_, host_->stream());
  reset_gradient_info();
  if (config_.fsdp1.cast_root_forward_inputs && root.unit.precision.param)
    cast_floating(inputs, *root.unit.precision.param);
}

void Fsdp1::pre_forward_unshard(State& state) {
  Handle& h = *state.handle;
  spend(state, kForwardTime, kForwardTimeEach);
  if (!h.prefetched) unshard(state, UnshardCause::kForward);
  h.needs_pre_forward_unshard = false;
  wait(host_->stream(), unshard_stream_);
  prefetch(state, false);
}

/// _unshard: pre-unshard work, the rate limiter, the all-gather.
void Fsdp1::unshard(State& state, UnshardCause cause) {
  emit({.kind = EventKind::kUnshard, .unit = state.index, .cause = cause});
  bool issued = false;
  {
    const StreamGuard on_pre_unshard(*host_, pre_unshard_stream_);
    issued = pre_unshard(state);
  }
  if (issued) wait(unshard_stream_, pre_unshard_stream_);
  if (config_.fsdp1.limit_all_gathers && free_events_.size() >= kMostFreeEvents) {
    const FreeEvent oldest = free_events_.front();
    free_events_.pop_front();
    emit({.kind = EventKind::kLimitPop,
          .unit = oldest.unit,
          .number = oldest.number,
          .number2 = static_cast<std::int64_t>(free_events_.size())});
    host_->program().sync_event(oldest.event);
    emit({.kind = EventKind::kHostSync, .unit = oldest.unit, .number = oldest.number});
  }
  const StreamGuard on_unshard(*host_, unshard_stream_);
  unshard_handle(state);
  post_unshard(state);
}

void Fsdp1::reshard(State& state, bool free_full_storage) {
  Handle& h = *state.handle;
  emit(EventKind::kReshard, state, free_full_storage);
  use_sharded_flat_param(state);
  if (free_full_storage) free_full(state);
  if (config_.fsdp1.limit_all_gathers && free_full_storage) {
    free_events_.push_back({host_->record_event(), state.index, pushed_});
    emit({.kind = EventKind::kLimitPush,
          .unit = state.index,
          .number = pushed_,
          .number2 = static_cast<std::int64_t>(free_events_.size())});
    ++pushed_;
  }
  // NO_SHARD computes with its low-precision shard, which goes now.
  if (h.mixed_parameters() && !state.unit.sharded()) free_low_precision_shard(state);
  h.prefetched = false;
}

void Fsdp1::record_pre_forward(State& state) {
  if (!state.handle || iteration_ > 0 || state.handle->pre_forward_index) return;
  state.handle->pre_forward_index = pre_forward_order_.size();
  pre_forward_order_.push_back(&state);
}

/// Index 0 counts as absent in PyTorch's test and is overwritten by a later use (F1-PF-3).
void Fsdp1::record_post_forward(State& state) {
  if (!state.handle) return;
  if (state.handle->post_forward_index.value_or(0) == 0)
    state.handle->post_forward_index = post_forward_order_.size();
  post_forward_order_.push_back(&state);
}

/// _register_post_backward_hook, in the first forward only; for a frozen unit a hook on the
/// gradients of its inputs.
void Fsdp1::register_post_backward(State& state, std::span<SymTensor> inputs) {
  Handle& h = *state.handle;
  if (!host_->grad_enabled() || h.hook_registered) return;
  h.hook_registered = true;
  if (h.flat_param->requires_grad) {
    h.hooked_accumulator = host_->grad_accumulator(h.flat_param);
    host_->register_accumulate_hook(h.hooked_accumulator, static_cast<std::uint32_t>(state.index));
    return;
  }
  const auto index = static_cast<std::uint32_t>(input_hooks_.size());
  InputHook hook{&state, {}};
  for (const SymTensor& t : inputs) {
    if (!host_->requires_grad(t)) continue;
    hook.nodes.push_back(host_->gradient_node(t));
    host_->register_tensor_hook(t, kInputHook | index);
  }
  input_hooks_.push_back(std::move(hook));
}

void Fsdp1::register_pre_backward(State& state, std::span<SymTensor> outputs) {
  if (!host_->grad_enabled()) return;
  if (state.is_root) callback_queued_ = false;
  if (state.handle) {
    state.handle->needs_pre_backward_unshard = false;
    state.handle->ran_pre_backward = false;
  }
  for (const SymTensor& t : outputs) {
    if (!host_->requires_grad(t)) continue;
    host_->register_tensor_hook(t, static_cast<std::uint32_t>(state.index));
    if (state.handle) state.handle->needs_pre_backward_unshard = true;
  }
}

// ------------------------------------------------------------------------------------------------
// prefetch

State* Fsdp1::prefetch_target(State& state) {
  const Handle& h = *state.handle;
  const bool pre = h.state == TrainingState::kBackwardPre &&
                   state.unit.backward_prefetch == BackwardPrefetch::kPre;
  const bool post = h.state == TrainingState::kBackwardPost &&
                    state.unit.backward_prefetch == BackwardPrefetch::kPost;
  if (pre || post) {
    if (h.post_forward_index.value_or(0) == 0) return nullptr;
    State* const target = post_forward_order_[*h.post_forward_index - 1];
    return target->handle->needs_pre_backward_unshard && !target->handle->prefetched ? target
                                                                                     : nullptr;
  }
  if (h.state == TrainingState::kForward && config_.fsdp1.forward_prefetch) {
    if (!h.pre_forward_index || *h.pre_forward_index + 1 >= pre_forward_order_.size())
      return nullptr;
    State* const target = pre_forward_order_[*h.pre_forward_index + 1];
    return target->handle->needs_pre_forward_unshard && !target->handle->prefetched ? target
                                                                                    : nullptr;
  }
  return nullptr;
}

void Fsdp1::prefetch(State& state, bool backward) {
  State* const target = prefetch_target(state);
  if (target == nullptr) return;
  Handle& h = *target->handle;
  host_->decide({.kind = DecisionKind::kPrefetch,
                 .flag = backward,
                 .unit = state.handle->unit,
                 .target = h.unit});
  const TrainingState before = h.state;
  h.state = backward ? TrainingState::kBackwardPre : TrainingState::kForward;
  unshard(*target, backward ? UnshardCause::kBackwardPrefetch : UnshardCause::kForwardPrefetch);
  h.state = before;
  h.prefetched = true;
}

// ------------------------------------------------------------------------------------------------
// backward

void Fsdp1::on_tensor_hook(Host&, std::uint32_t payload, SymTensor&) {
  if ((payload & kInputHook) == 0) return pre_backward(*states_[payload]);
  InputHook& hook = input_hooks_[payload & ~kInputHook];
  if (hook.nodes.empty()) return;
  const auto expected = std::count_if(hook.nodes.begin(), hook.nodes.end(),
                                      [&](const auto& n) { return host_->will_run(n); });
  if (static_cast<std::ptrdiff_t>(++hook.seen) < expected) return;
  hook.seen = 0;
  State& state = *hook.state;
  emit(EventKind::kPostBackwardReshardOnly, state);
  state.handle->state = TrainingState::kBackwardPost;
  post_backward_reshard(state);
}

void Fsdp1::on_accumulated(Host&, std::uint32_t payload) { post_backward(*states_[payload]); }

void Fsdp1::on_backward_callback(Host&, std::uint32_t) { final_callback(); }

void Fsdp1::pre_backward(State& state) {
  if (state.handle && state.handle->ran_pre_backward) return;
  emit(EventKind::kPreBackward, state);
  if (state.is_root && !callback_queued_) {
    callback_queued_ = true;
    host_->queue_callback(0);
    reset_gradient_info();
  }
  if (!state.handle) return;
  Handle& h = *state.handle;
  h.state = TrainingState::kBackwardPre;
  if (h.needs_pre_backward_unshard) {
    if (!h.prefetched) unshard(state, UnshardCause::kBackward);
    wait(host_->stream(), unshard_stream_);
  }
  h.needs_pre_backward_unshard = false;
  prefetch(state, true);
  prepare_gradient_for_backward(state);
  h.ran_pre_backward = true;
}

void Fsdp1::post_backward(State& state) {
  Handle& h = *state.handle;
  SymTensor& gradient = h.flat_param->grad;
  emit({.kind = EventKind::kPostBackward,
        .unit = state.index,
        .bytes = gradient ? gradient->bytes() : 0,
        .dtype = gradient ? gradient->dtype : DType::kFloat32});
  spend(state, kBackwardTime, kBackwardTimeEach);
  const NoGradGuard no_grad(*host_);
  h.post_backward_called = true;
  h.state = TrainingState::kBackwardPost;
  if (!gradient) return;
  post_backward_reshard(state);
  if (sync_) return reduce_gradient(state);
  if (!h.originals.empty()) use_unsharded_gradient_views(state);
}

void Fsdp1::post_backward_reshard(State& state) {
  reshard(state, frees_in_backward(state));
  prefetch(state, true);
}

bool Fsdp1::frees_in_backward(const State& state) const {
  return state.unit.sharded() && (sync_ || state.unit.reshards_after_forward());
}

void Fsdp1::final_callback() {
  emit({.kind = EventKind::kFinalCallback});
  const NoGradGuard no_grad(*host_);
  if (sync_) {
    wait(host_->stream(), post_backward_stream_);
    if (all_reduce_stream_ != host_->stream()) {
      wait(host_->stream(), all_reduce_stream_);
    } else if (!extras_.computes_on_cpu) {
      // PyTorch compares stream objects, of which a GPU's current stream has a new one each time.
      host_->wait_stream(host_->stream(), host_->stream());
    }
    if (config_.offload == OffloadKind::kParameters) {
      host_->program().sync_stream(host_->stream());
      emit({.kind = EventKind::kHostSync, .on = stream_name(host_->stream())});
    }
  }
  ++iteration_;
  post_forward_order_.clear();
  for (const auto& state : states_) {
    finalize(*state);
    if (!state->handle) continue;
    Handle& h = *state->handle;
    h.ran_pre_backward = h.needs_pre_backward_unshard = h.prefetched = false;
    h.post_forward_index.reset();
    h.state = TrainingState::kIdle;
  }
  callback_queued_ = false;
}

/// _catch_all_reshard and _finalize_params.
void Fsdp1::finalize(State& state) {
  if (!state.handle) return;
  Handle& h = *state.handle;
  const bool resharded =
      h.flat_param->storage == h.local_shard->storage && !h.skipped_sharded_views;
  if (!resharded) reshard(state, frees_in_backward(state));
  if (h.hook_registered) {
    if (h.hooked_accumulator) host_->remove_accumulate_hooks(h.hooked_accumulator);
    h.hooked_accumulator = {};
    h.hook_registered = false;
  }
  for (InputHook& hook : input_hooks_)
    if (hook.state == &state) hook.nodes.clear();
  if (!h.flat_param->requires_grad || !sync_) return;
  prepare_gradient_for_optimizer(state);
  h.post_backward_called = false;
}

}  // namespace foreshard::fsdp1
