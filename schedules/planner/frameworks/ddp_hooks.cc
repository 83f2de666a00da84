// Communication hooks of DDP: the averaging and compressing ones, and the one behind mixed
// precision (D-10).

#include <algorithm>
#include <utility>

#include "schedules/planner/frameworks/ddp.h"

namespace foreshard::ddp {

void Ddp::run_hook(Host& host, Bucket& bucket) {
  switch (options_.comm_hook) {
    case DdpCommHook::kBf16Compress:
      return run_compression(host, bucket, DType::kBFloat16);
    case DdpCommHook::kFp16Compress:
      return run_compression(host, bucket, DType::kFloat16);
    case DdpCommHook::kAllReduce:
      return run_average(host, bucket);
    case DdpCommHook::kPowerSgd:
      return run_power_sgd(host, bucket);
    case DdpCommHook::kNone:
      return run_upcast(host, bucket);
  }
}

/// _allreduce_fut: divided, then reduced in place.
void Ddp::run_average(Host& host, Bucket& bucket) {
  host.launch(OpKind::kMulScalar, {bucket.buffer}, {bucket.buffer},
              {1.0 / static_cast<double>(world_)});
  bucket.reduced =
      collective(host, CollectiveKind::kAllReduce, bucket.buffer, bucket.buffer, bucket.unit);
  bucket.result = bucket.buffer;
}

/// _compress_hook: cast, divide, all-reduce; the decompression runs on a stream of its own, which
/// waits for the result only. A bucket that has the dtype already is divided and reduced in place.
void Ddp::run_compression(Host& host, Bucket& bucket, DType dtype) {
  bucket.compressed = host.cast(bucket.buffer, dtype, BufferCategory::kBucket, bucket.unit);
  const SymTensor& sent = bucket.compressed;
  host.launch(OpKind::kMulScalar, {sent}, {sent}, {1.0 / static_cast<double>(world_)});
  const EventId reduced = collective(host, CollectiveKind::kAllReduce, sent, sent, bucket.unit);
  if (upcast_stream_ == 0) upcast_stream_ = host.program().add_stream("hook", 0);
  const StreamGuard on_hook_stream(host, upcast_stream_);
  host.wait_event(upcast_stream_, reduced);
  host.launch(OpKind::kCopy, {sent}, {bucket.buffer});
  bucket.reduced = host.record_event(upcast_stream_);
  bucket.result = bucket.buffer;
}

// ----------------------------------------------------------------------------------------------
// mixed precision

/// _setup_mixed_precision_params, _cast_buffers and _set_mixed_precision_param_dtype: storages in
/// the low dtype, made and freed; buffers cast; buckets in the low dtype. PyTorch leaves the views
/// on the first buckets' old memory, so that its first iteration reduces memory that holds no
/// gradients; here gradients go into the bucket that is reduced.
void Ddp::prepare_mixed_precision(Host& host) {
  const MixedPrecision& mp = *options_.mixed_precision;
  const Model& model = host.model();
  if (!mp.param) {
    throw DdpError(Refusal::kRuntimeError, "ddp mixed precision", "has no dtype of parameters",
                   "e.g. bf16");
  }
  low_of_.assign(model.parameters.size(), -1);
  for (const ParameterId id : parameter_order(model)) {
    const SymTensor& p = host.parameter(id);
    LowPrecision l;
    l.id = id;
    l.parameter = p;
    l.full = host.detach(p);
    l.low = host.unallocated(p->shape, *mp.param, p->numel * size_of(*mp.param),
                             BufferCategory::kParameter);
    host.allocate_storage(l.low);
    host.launch(OpKind::kFill, {}, {l.low}, {0.0});
    host.free_storage(l.low);
    low_of_[id.value] = static_cast<std::int32_t>(low_.size());
    low_.push_back(std::move(l));
  }
  host.remark(
      "DDP's mixed precision returns low precision gradients while the upcast stream is still to "
      "read them (a race in PyTorch, without effect: the reduced gradients replace what it read); "
      "copies of parameters wait for the optimizer here, in PyTorch they do not");
  lower_stream_ = host.program().add_stream("low precision copies", 0);
  upcast_stream_ = host.program().add_stream("upcast", 0);
  lowered_.resize(model.modules.size());
  lowered_valid_.assign(model.modules.size(), 0);
  for (std::uint32_t m = 0; m < model.modules.size(); ++m) host.watch(ModuleId(m));
  accumulators_.clear();  // They belong to the full parameters and never run.
  for (Bucket& b : buckets_) {
    // PyTorch converts what nobody has written yet; here it is zeros, the old memory goes then.
    SymTensor low = host.empty({b.numel}, *mp.param, BufferCategory::kBucket, b.unit);
    host.launch(OpKind::kFill, {}, {low}, {0.0});
    b.buffer = std::move(low);
    make_views(host, b);
  }
}

/// _root_copy_hook: copies in the low dtype, module by module, on their own stream. PyTorch does
/// not let that stream wait for the optimizer; here it does, so that the copies are those of the
/// updated parameters.
void Ddp::lower_parameters(Host& host) {
  const MixedPrecision& mp = *options_.mixed_precision;
  host.wait_stream(lower_stream_, host.stream());
  const StreamGuard guard(host, lower_stream_);
  for (std::uint32_t m = 0; m < host.model().modules.size(); ++m) {
    for (const OwnedParameter& owned : host.model().modules[m].parameters) {
      LowPrecision& l = low_[static_cast<std::size_t>(low_of_[owned.id.value])];
      host.allocate_storage(l.low);
      // Tied, and met before: a copy onto itself, which launches nothing.
      if (l.parameter->storage.get() != l.low->storage.get())
        host.launch(OpKind::kCopy, {l.parameter}, {l.low});
      SymTensor& grad = l.parameter->grad;
      if (grad) grad = host.cast(grad, *mp.param, BufferCategory::kUnshardedGradient);
      host.set_data(l.parameter, l.low);
    }
    lowered_[m] = host.record_event(lower_stream_);
    lowered_valid_[m] = 1;
  }
}

/// _module_wait_for_copy_hook, once for each module and forward; the root's copies are started
/// first.
void Ddp::pre_forward(Host& host, ModuleId module, std::span<SymTensor> inputs) {
  if (!options_.mixed_precision) return;
  if (module.value == 0) {
    for (SymTensor& t : inputs) {
      if (is_floating(t->dtype)) t = host.to(t, *options_.mixed_precision->param);
    }
    lower_parameters(host);
  }
  if (lowered_valid_[module.value] == 0) return;
  lowered_valid_[module.value] = 0;
  host.wait_event(host.stream(), lowered_[module.value]);
  for (const OwnedParameter& owned : host.model().at(module).parameters) {
    for (std::size_t i = 0; i < locals_.size(); ++i) {
      if (locals_[i].id != owned.id) continue;
      if (!host.grad_enabled()) {  // p.expand_as(p).grad_fn is None.
        throw DdpError(Refusal::kAttributeError, host.model().at(owned.id).name,
                       "DDP's mixed precision finds no gradient accumulator: the first forward of a "
                       "reentrant checkpoint runs without gradients",
                       "--checkpoint-reentrant no");
      }
      const Ref<AutogradNode> node = host.grad_accumulator(locals_[i].local);
      const bool again =
          std::any_of(accumulators_.begin(), accumulators_.end(),
                      [&](const Ref<AutogradNode>& a) { return a.get() == node.get(); });
      host.register_accumulate_hook(node,
                                    static_cast<std::uint32_t>(i) | (again ? kSecondHook : 0));
      accumulators_.push_back(node);
    }
  }
}

/// p.grad.data = p.grad.to(full). The gradient in the low dtype goes back to the compute stream's
/// pool while the upcast stream, which does not run yet, is still to read it: a race of PyTorch's
/// that changes no result, as the end of backward copies the reduced gradient over the cast one.
/// Here the launch reads the reduced gradient.
void Ddp::upcast_gradient(Host& host, SymTensor& grad, const SymTensor& reduced, DType full) {
  SymTensor cast_to = host.empty(grad->shape, full, BufferCategory::kUnshardedGradient);
  LaunchRequest q;
  q.op = OpKind::kCopy;
  q.inputs = {&reduced, 1};
  q.outputs = {&cast_to, 1};
  q.read_bytes = grad->bytes();
  host.launch(q);
  grad = std::move(cast_to);
}

/// _reducer_allreduce_and_upcast_hook: reduced in reduce_dtype, divided after it, parameters and
/// gradients back in full precision, on the upcast stream.
void Ddp::run_upcast(Host& host, Bucket& bucket) {
  const MixedPrecision& mp = *options_.mixed_precision;
  SymTensor sent =
      host.cast(bucket.buffer, mp.reduce.value_or(*mp.param), BufferCategory::kBucket, bucket.unit);
  const EventId reduced = collective(host, CollectiveKind::kAllReduce, sent, sent, bucket.unit);
  const StreamGuard guard(host, upcast_stream_);
  host.wait_event(upcast_stream_, reduced);
  host.launch(OpKind::kMulScalar, {sent}, {sent}, {1.0 / static_cast<double>(world_)});
  bucket.result = std::move(sent);
  bucket.reduced = {};  // The end of backward waits for the stream.
  std::int64_t offset = 0;
  for (const std::size_t i : bucket.parameters) {
    LowPrecision& l = low_[static_cast<std::size_t>(low_of_[locals_[reduced_[i]].id.value])];
    SymTensor& grad = l.parameter->grad;
    if (!grad) {
      throw DdpError(Refusal::kAttributeError, host.model().at(l.id).name,
                     "has no gradient to cast back", "mixed precision needs every parameter used");
    }
    host.set_data(l.parameter, l.full);
    host.free_storage(l.low);
    upcast_gradient(host, grad, host.view_as(bucket.result, l.full->shape, offset), l.full->dtype);
    offset += l.full->numel;
  }
  if (upcast_queued_) return;
  host.queue_callback(kWaitForUpcast);
  upcast_queued_ = true;
}

/// Frozen parameters are cast too and come back at the end of backward; their low copies stay
/// allocated.
void Ddp::restore_frozen(Host& host) {
  accumulators_.clear();
  for (LowPrecision& l : low_) {
    if (!l.parameter->requires_grad) host.set_data(l.parameter, l.full);
  }
}

}  // namespace foreshard::ddp
