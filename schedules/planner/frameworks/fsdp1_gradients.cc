// Where a flat parameter's gradient is between backward passes (prepare_gradient_for_backward /
// _optim), and the gradients of original parameters, which are views of it.

#include <utility>

#include "core/dtype.h"
#include "schedules/planner/frameworks/fsdp1.h"
#include "schedules/planner/frameworks/fsdp1_error.h"

namespace foreshard::fsdp1 {

/// FlatParamHandle.sharded_grad.
SymTensor Fsdp1::sharded_gradient(const Handle& h) const {
  if (h.cpu_gradient) return h.cpu_gradient;
  if (h.saved_gradient) return *h.saved_gradient;
  return h.flat_param->grad;
}

/// `param.grad = view`; where shapes or dtypes differ PyTorch first makes a placeholder like the
/// parameter.
void Fsdp1::set_gradient_view(Handle& h, std::size_t entry, const SymTensor& gradient,
                              bool always_placeholder) {
  SymTensor& parameter = h.originals[entry].parameter;
  const bool differs = parameter->dtype != gradient->dtype || parameter->shape != gradient->shape ||
                       parameter->storage->space != gradient->storage->space;
  if ((differs || always_placeholder) && !parameter->grad && parameter->numel > 0 &&
      parameter->storage->space == MemorySpace::kDevice) {
    parameter->grad =
        host_->empty(parameter->shape, parameter->dtype, BufferCategory::kReduceTemporary, h.unit);
  }
  parameter->grad = gradient;
}

/// Gradients of 16 bits reach a parameter of 32 behind autograd's back (`grad.data = ...`), but for
/// the second name of a tied one, which takes its gradient by plain assignment.
void check_shared_gradient(const FlatEntry& e, const SymTensor& parameter,
                           const SymTensor& gradient) {
  if (e.places.size() < 2 || parameter->dtype == gradient->dtype) return;
  throw Fsdp1Error(Refusal::kRuntimeError, e.name,
                   "is tied, and its gradient kept in " + std::string(name_of(gradient->dtype)) +
                       " cannot be given to its second name",
                   "--fsdp1-keep-low-precision-grads no, or --fsdp1-use-orig-params no");
}

void Fsdp1::use_sharded_gradient_views(State& state) {
  Handle& h = *state.handle;
  const SymTensor gradient = sharded_gradient(h);
  for (std::size_t i = 0; i < h.layout->entries.size(); ++i) {
    const FlatEntry& e = h.layout->entries[i];
    if (e.is_padding()) continue;
    OriginalParameter& o = h.originals[i];
    const FlatLayout::Part part = h.layout->part_of(e, shard_rank_);
    if (!gradient || part.numel == 0 || !e.trainable || o.gradient_none) {
      o.parameter->grad.reset();
      continue;
    }
    const Shape shape = state.unit.sharded() ? Shape{part.numel} : Shape(e.shape);
    const std::int64_t offset = state.unit.sharded() ? part.offset : e.offset;
    set_gradient_view(h, i, host_->view_as(gradient, shape, gradient->offset + offset),
                      state.unit.keep_low_precision_grads);
    check_shared_gradient(e, o.parameter, gradient);
  }
}

void Fsdp1::use_unsharded_gradient_views(State& state) {
  Handle& h = *state.handle;
  const SymTensor gradient = h.flat_param->grad;
  for (std::size_t i = 0; i < h.layout->entries.size(); ++i) {
    const FlatEntry& e = h.layout->entries[i];
    if (e.is_padding()) continue;
    if (!gradient) {
      h.originals[i].parameter->grad.reset();
    } else {
      set_gradient_view(h, i, host_->view_as(gradient, Shape(e.shape), gradient->offset + e.offset),
                        false);
    }
  }
}

/// _writeback_orig_params: parts of the flat gradient whose parameter has none are set to zero;
/// gradients that are not views of it (with offload: views of the host's) are copied into a new
/// one.
void Fsdp1::write_back_gradients(State& state) {
  Handle& h = *state.handle;
  const bool sharded_now = h.flat_param->storage == h.local_shard->storage;
  if (h.skipped_sharded_views || (state.unit.sharded() && !sharded_now)) return;
  SymTensor& flat = h.flat_param->grad;
  for (std::size_t i = 0; i < h.layout->entries.size(); ++i) {
    const FlatEntry& e = h.layout->entries[i];
    const FlatLayout::Part part =
        e.is_padding() ? FlatLayout::Part{} : h.layout->part_of(e, shard_rank_);
    if (part.numel == 0) continue;
    const SymTensor& gradient = h.originals[i].parameter->grad;
    if (!gradient) {
      if (!flat) continue;
      // PyTorch fills a frozen one too, on a stream that nothing waits for; its part is zero
      // anyway.
      if (e.trainable) {
        host_->launch(OpKind::kFill, {},
                      {host_->view_as(flat, {part.numel}, flat->offset + part.offset)}, {0.0});
      }
      h.originals[i].gradient_none = true;
      continue;
    }
    if (!state.unit.sharded() && h.cpu_gradient) continue;
    if (flat && flat->storage == gradient->storage) continue;
    if (!flat) {
      flat = like_local_shard(h);
      host_->launch(OpKind::kFill, {}, {flat}, {0.0});
    }
    host_->launch(OpKind::kCopy, {host_->view_as(gradient, {part.numel}, gradient->offset)},
                  {host_->view_as(flat, {part.numel}, part.offset)});
  }
}

SymTensor Fsdp1::like_local_shard(const Handle& h) {
  constexpr BufferCategory kGradient = BufferCategory::kShardedGradient;
  const SymTensor& shard = h.local_shard;
  if (shard->storage->space == MemorySpace::kDevice)
    return host_->empty(shard->shape, shard->dtype, kGradient, h.unit);
  return host_->empty_on_host(shard->shape, shard->dtype, MemorySpace::kHostPageable, kGradient,
                              h.unit);
}

/// _reset_flat_param_grad_info_if_needed: the flat gradient goes once no original parameter has
/// one.
void Fsdp1::reset_gradient_info() {
  for (const auto& state : states_) {
    if (!state->handle || state->handle->originals.empty()) continue;
    Handle& h = *state->handle;
    bool all_none = true;
    for (const OriginalParameter& o : h.originals)
      all_none = all_none && (!o.parameter || !o.parameter->grad);
    if (all_none) h.flat_param->grad.reset();
  }
}

void Fsdp1::prepare_gradient_for_backward(State& state) {
  Handle& h = *state.handle;
  SymTensor& gradient = h.flat_param->grad;
  if (!gradient) return;
  const bool on_host = gradient->storage->space != MemorySpace::kDevice;
  const bool other_device = h.cpu_gradient && !extras_.computes_on_cpu ? on_host : false;
  if (gradient->numel == h.layout->numel && !other_device) return;
  if (gradient->numel == h.local_shard->numel && !on_host) h.saved_gradient = gradient;
  if (h.saved_gradient && *h.saved_gradient && state.unit.keep_low_precision_grads) {
    h.saved_gradient =
        host_->cast(*h.saved_gradient, h.layout->dtype, BufferCategory::kShardedGradient, h.unit);
  }
  gradient.reset();
}

void Fsdp1::prepare_gradient_for_optimizer(State& state) {
  Handle& h = *state.handle;
  bool given = false;
  if (h.cpu_gradient) {
    h.flat_param->grad = h.cpu_gradient;
    given = true;
  } else if (h.saved_gradient && h.post_backward_called) {
    h.flat_param->grad = *h.saved_gradient;
    given = static_cast<bool>(h.flat_param->grad);
  }
  if (given && state.unit.keep_low_precision_grads &&
      h.flat_param->grad->dtype != h.layout->forward_dtype) {
    h.flat_param->grad = host_->cast(h.flat_param->grad, h.layout->forward_dtype,
                                     BufferCategory::kShardedGradient, h.unit);
    if (h.saved_gradient) h.saved_gradient = h.flat_param->grad;  // One tensor: grad.data is set.
    if (!h.originals.empty()) use_sharded_gradient_views(state);
  }
  h.saved_gradient.reset();
}

}  // namespace foreshard::fsdp1
