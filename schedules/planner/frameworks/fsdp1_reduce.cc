// Reduction of a flat gradient on the post-backward stream (F1-B-2, F1-B-6, F1-B-7, F1-MP-1,
// F1-OFF-1).

#include <utility>

#include "schedules/planner/frameworks/fsdp1.h"

namespace foreshard::fsdp1 {

void Fsdp1::divide(State& state, const SymTensor& gradient, double factor) {
  if (factor <= 1) return;
  emit({.kind = EventKind::kDivide,
        .unit = state.index,
        .bytes = gradient->bytes(),
        .factor = factor,
        .stream = stream_name(host_->stream())});
  host_->launch(OpKind::kMulInPlace, {gradient}, {gradient}, {1 / factor});
}

/// The part of _post_backward_hook after resharding, when gradients are synchronised.
void Fsdp1::reduce_gradient(State& state) {
  Handle& h = *state.handle;
  wait(post_backward_stream_, host_->stream());
  const StreamGuard on_post_backward(*host_, post_backward_stream_);
  SymTensor computed = h.flat_param->grad;
  if (h.flat_param->grad->dtype != h.layout->reduce_dtype) {
    h.flat_param->grad = host_->cast(h.flat_param->grad, h.layout->reduce_dtype,
                                     BufferCategory::kReduceInput, h.unit);
  }
  if (state.unit.sharded()) {
    reduce_sharded(state);
  } else {
    reduce_unsharded(state);
  }
  record_stream(state, computed, FlatBuffer::kGradient, post_backward_stream_);
}

void Fsdp1::reduce_sharded(State& state) {
  Handle& h = *state.handle;
  SymTensor gradient = std::move(h.flat_param->grad);
  h.flat_param->grad.reset();
  SymTensor padded = gradient;
  const std::int64_t numel = h.layout->shard * h.layout->ranks;
  if (numel > gradient->numel) {
    padded = host_->empty({numel}, gradient->dtype, BufferCategory::kReduceInput, h.unit);
    host_->launch(OpKind::kFill, {}, {padded}, {0.0});
    host_->launch(OpKind::kCopy, {gradient}, {host_->view_as(padded, {gradient->numel})});
  }
  SymTensor shard =
      host_->empty({h.layout->shard}, gradient->dtype, BufferCategory::kReduceOutput, h.unit);
  emit({.kind = EventKind::kReduceInput,
        .unit = state.index,
        .numel = gradient->numel,
        .numel2 = numel,
        .dtype = gradient->dtype,
        .stream = stream_name(host_->stream())});
  divide(state, padded, state.unit.predivide);
  collective(&state, CollectiveKind::kReduceScatter, padded, shard, shard_group_);
  if (!state.unit.hybrid()) {
    divide(state, shard, state.unit.postdivide);
    shard = save_sharded_gradient(state, std::move(shard));
  } else {
    wait(all_reduce_stream_, post_backward_stream_);
    const StreamGuard on_all_reduce(*host_, all_reduce_stream_);
    record_stream(state, shard, FlatBuffer::kGradient, all_reduce_stream_);
    collective(&state, CollectiveKind::kAllReduce, shard, shard, replicate_group_);
    divide(state, shard, state.unit.postdivide);
    shard = save_sharded_gradient(state, std::move(shard));
  }
  gradient.reset();  // Locals go in the order of their first assignment.
  padded.reset();
  shard.reset();
}

/// _cast_grad_to_param_dtype.
SymTensor Fsdp1::cast_gradient(State& state, const SymTensor& gradient, DType dtype) {
  if (gradient->dtype == dtype) return gradient;
  SymTensor wide =
      host_->cast(gradient, dtype, BufferCategory::kShardedGradient, state.handle->unit);
  record_stream(state, gradient, FlatBuffer::kGradient, host_->stream());
  return wide;
}

/// _accumulate_sharded_grad, then the callback after the reduction. Returns the gradient as cast,
/// which the caller still holds.
SymTensor Fsdp1::save_sharded_gradient(State& state, SymTensor gradient) {
  Handle& h = *state.handle;
  if (gradient->dtype != h.layout->dtype) {
    emit({.kind = EventKind::kCast,
          .unit = state.index,
          .numel = gradient->numel,
          .dtype = h.layout->dtype,
          .stream = stream_name(host_->stream())});
  }
  emit({.kind = EventKind::kSaveGradient,
        .unit = state.index,
        .flag = h.saved_gradient.has_value(),
        .numel = gradient->numel,
        .stream = stream_name(host_->stream())});
  gradient = cast_gradient(state, gradient, h.layout->dtype);
  if (h.saved_gradient && *h.saved_gradient) {
    host_->launch(OpKind::kAddInPlace, {*h.saved_gradient, gradient}, {*h.saved_gradient});
  } else {
    host_->set_category(gradient, BufferCategory::kShardedGradient, h.unit);
    h.saved_gradient = gradient;
  }
  after_reduction(state, *h.saved_gradient);
  return gradient;
}

void Fsdp1::reduce_unsharded(State& state) {
  Handle& h = *state.handle;
  divide(state, h.flat_param->grad, state.unit.predivide);
  collective(&state, CollectiveKind::kAllReduce, h.flat_param->grad, h.flat_param->grad,
             shard_group_);
  divide(state, h.flat_param->grad, state.unit.postdivide);
  if (!state.unit.keep_low_precision_grads)
    h.flat_param->grad = cast_gradient(state, h.flat_param->grad, h.layout->dtype);
  after_reduction(state, h.flat_param->grad);
}

/// _post_reduce_grad_callback.
void Fsdp1::after_reduction(State& state, const SymTensor& to_offload) {
  Handle& h = *state.handle;
  if (h.cpu_gradient) {
    emit({.kind = EventKind::kToHost,
          .unit = state.index,
          .bytes = to_offload->bytes(),
          .dtype = to_offload->dtype,
          .stream = stream_name(host_->stream())});
    Copy c;
    c.direction = CopyDirection::kDeviceToHost;
    c.bytes = Bytes(to_offload->bytes());
    c.source = host_->id_of(to_offload);
    c.destination = host_->id_of(h.cpu_gradient);
    c.blocks_host = !state.unit.sharded();
    host_->copy(c);
    record_stream(state, to_offload, FlatBuffer::kGradient, post_backward_stream_);
  }
  if (h.originals.empty()) return;
  for (std::size_t i = 0; i < h.originals.size(); ++i)
    h.originals[i].gradient_none = !h.layout->entries[i].trainable;
  use_sharded_gradient_views(state);
}

}  // namespace foreshard::fsdp1
