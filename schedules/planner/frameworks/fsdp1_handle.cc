// FlatParamHandle: how one flat parameter changes between its local shard, its low-precision shard
// and the gathered storage, and what the modules' parameters are meanwhile (F1-S-3, F1-S-5).

#include <utility>

#include <algorithm>

#include "schedules/planner/frameworks/fsdp1.h"
#include "schedules/planner/recipes/recipe.h"

namespace foreshard::fsdp1 {
namespace {

bool on_device(const SymTensor& t) { return t->storage->space == MemorySpace::kDevice; }

}  // namespace

// ------------------------------------------------------------------------------------------------
// unsharding

/// True if work was issued that the unshard stream must wait for.
bool Fsdp1::pre_unshard(State& state) {
  Handle& h = *state.handle;
  if (!h.originals.empty()) write_back_gradients(state);
  const bool offload = config_.offload == OffloadKind::kParameters;
  if (state.unit.sharded() && !offload && !needs_unshard(state)) return false;
  if (h.mixed_parameters()) {
    use_low_precision_shard(state);
    return true;
  }
  if (offload && !extras_.computes_on_cpu && !on_device(h.flat_param)) {
    to_device(state);
    return true;
  }
  return false;
}

/// The copy from the host, if there is one, lives until the cast is issued.
void Fsdp1::use_low_precision_shard(State& state) {
  Handle& h = *state.handle;
  allocate(state, h.low_precision_shard, FlatBuffer::kLowPrecisionShard);
  SymTensor source = h.local_shard;
  if (!on_device(source)) {
    source = host_->empty(source->shape, source->dtype, BufferCategory::kGatherInput, h.unit);
    Copy c;
    c.bytes = Bytes(source->bytes());
    c.source = host_->id_of(h.local_shard);
    c.destination = host_->id_of(source);
    host_->copy(c);
  }
  host_->launch(OpKind::kCopy, {source}, {h.low_precision_shard});
  host_->set_data(h.flat_param, h.low_precision_shard);
}

/// flat_param_to(device): a tensor of its own, which original parameters show (and hold, in the
/// place of the low-precision shard that this unit has not) until use_sharded_views.
void Fsdp1::to_device(State& state) {
  Handle& h = *state.handle;
  const SymTensor copy =
      host_->empty(h.flat_param->shape, h.flat_param->dtype, BufferCategory::kGatherInput, h.unit);
  Copy c;
  c.bytes = Bytes(copy->bytes());
  c.source = host_->id_of(h.flat_param);
  c.destination = host_->id_of(copy);
  host_->copy(c);
  host_->set_data(h.flat_param, copy);
  const bool shown =
      std::any_of(h.originals.begin(), h.originals.end(),
                  [](const OriginalParameter& o) { return o.parameter && o.parameter->numel > 0; });
  if (shown) h.low_precision_shard = copy;
}

bool Fsdp1::needs_unshard(const State& state) const {
  return state.unit.sharded() && !state.handle->full->storage->buffer.valid();
}

void Fsdp1::unshard_handle(State& state) {
  Handle& h = *state.handle;
  if (!needs_unshard(state))
    return use_unsharded_flat_param(state, state.unit.sharded() ? h.full : h.flat_param);
  allocate(state, h.full, FlatBuffer::kFull);
  const SymTensor shard = host_->detach(h.flat_param);
  collective(&state, CollectiveKind::kAllGather, shard, h.full, shard_group_);
  if (config_.offload == OffloadKind::kParameters)
    record_stream(state, shard, FlatBuffer::kGradient, host_->stream());
  use_unsharded_flat_param(state, h.full);
}

void Fsdp1::use_unsharded_flat_param(State& state, const SymTensor& padded) {
  Handle& h = *state.handle;
  host_->set_data(h.flat_param, host_->view_as(padded, {h.layout->numel}, padded->offset));
  const bool in_forward = h.state == TrainingState::kForward,
             in_pre_backward = h.state == TrainingState::kBackwardPre;
  if (h.originals.empty()) {
    if (in_forward) use_unsharded_views(state);
    return;
  }
  if (h.skipped_sharded_views && in_pre_backward) return;
  if (in_forward) return use_unsharded_views(state);
  // The views of the forward stay: their storage is there again (for recomputation by a reentrant
  // checkpoint).
  for (std::size_t i = 0; i < h.layout->entries.size(); ++i) {
    const FlatEntry& e = h.layout->entries[i];
    if (!e.is_padding() && h.originals[i].forward_view) {
      host_->set_data(h.originals[i].forward_view,
                      host_->view_as(padded, Shape(e.shape), padded->offset + e.offset));
      h.views[i] = h.originals[i].forward_view;
      host_->set_parameter(e.id, h.views[i]);
    }
  }
}

/// torch.split and a view for each parameter, tracked by autograd even under no_grad.
void Fsdp1::use_unsharded_views(State& state) {
  Handle& h = *state.handle;
  const bool grad_before = host_->grad_enabled();
  host_->set_grad_enabled(true);
  std::vector<SymTensor> parts(h.layout->entries.size());
  split(*host_, h.flat_param, 0, h.layout->sizes, parts);
  if (!parts.empty() && parts[0]->grad_fn) parts[0]->grad_fn->sizes = &h.layout->sizes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const FlatEntry& e = h.layout->entries[i];
    if (e.is_padding()) continue;
    h.views[i] = view(*host_, parts[i], Shape(e.shape));
    if (!h.originals.empty()) h.originals[i].forward_view = h.views[i];
    host_->set_parameter(e.id, h.views[i]);
  }
  h.constructed_accumulator = {};
  host_->set_grad_enabled(grad_before);
}

void Fsdp1::post_unshard(State& state) {
  if (state.handle->mixed_parameters() && state.unit.sharded()) free_low_precision_shard(state);
}

void Fsdp1::free_low_precision_shard(State& state) {
  const SymTensor& shard = state.handle->low_precision_shard;
  record_stream(state, shard, FlatBuffer::kLowPrecisionShard, host_->stream());
  release(state, shard, FlatBuffer::kLowPrecisionShard);
}

// ------------------------------------------------------------------------------------------------
// resharding

void Fsdp1::use_sharded_flat_param(State& state) {
  Handle& h = *state.handle;
  const bool originals = !h.originals.empty(), in_forward = h.state == TrainingState::kForward;
  const bool keeps_after_forward = state.unit.strategy == Strategy::kShardGradOp ||
                                   state.unit.strategy == Strategy::kHybridZero2;
  const bool skip = originals && host_->grad_enabled() && in_forward && keeps_after_forward;
  if (config_.offload == OffloadKind::kParameters && !state.unit.sharded()) {
    record_stream(state, h.flat_param, FlatBuffer::kGradient, host_->stream());
  }
  host_->set_data(h.flat_param, h.local_shard);
  if (!originals) return;
  if (skip) {
    h.skipped_sharded_views = true;
  } else {
    use_sharded_views(state);
  }
  if (!in_forward || h.skipped_sharded_views) return;
  const bool accumulated =
      h.flat_param->grad && state.unit.sharded() && h.flat_param->grad->numel == h.layout->numel;
  if (accumulated) {
    use_unsharded_gradient_views(state);
  } else {
    use_sharded_gradient_views(state);
  }
}

/// The modules' parameters are the optimizer's again.
void Fsdp1::use_sharded_views(State& state) {
  Handle& h = *state.handle;
  h.skipped_sharded_views = false;
  if (!h.mixed_parameters()) h.low_precision_shard.reset();
  for (std::size_t i = 0; i < h.layout->entries.size(); ++i) {
    const FlatEntry& e = h.layout->entries[i];
    if (e.is_padding()) continue;
    OriginalParameter& o = h.originals[i];
    host_->set_parameter(e.id, o.parameter);
    h.views[i] = o.parameter;
    if (h.state == TrainingState::kBackwardPost) o.forward_view.reset();
  }
}

void Fsdp1::free_full(State& state) {
  const SymTensor& full = state.handle->full;
  record_stream(state, full, FlatBuffer::kFull, host_->stream());
  release(state, full, FlatBuffer::kFull);
}

}  // namespace foreshard::fsdp1
