// ZeRO 1 and 2 with the optimizer in host memory: reduced gradients go down one by one
// (ZeRO-Offload).

#include "schedules/planner/frameworks/zero12.h"

namespace foreshard::zero {

void Zero12::record_copy(Host& host) { pending_copy_ = host.record_event(); }

void Zero12::wait_for_copies(Host& host) {
  if (!pending_copy_) return;
  sync_event(host, *pending_copy_, cause_);
  pending_copy_.reset();
}

/// copy_grads_in_partition. The lone backward of a step goes straight down in fp32; others add up
/// in host memory.
void Zero12::offload_gradient(Host& host, ParameterId id) {
  SymTensor& grad = gradient(host, id);
  const Overlap o = overlap_of(id);
  FlatGroup& g = groups_[places_.at(id).group];
  SymTensor source;
  if (compact()) {
    if (!boundary_) return;
    source = flat_view(host, g.compact, o.destination, o.numel);
  } else {
    if ((stage2_ && micro_ > 0) || !boundary_) accumulate_on_host(host, id);
    if (!boundary_) return;
    source = flat_view(host, grad, o.source, o.numel);
  }
  parameter_norms_[id] = wide_norm(host, source);
  {
    const SymTensor flag = host.empty({1}, DType::kUInt8, BufferCategory::kWorkspace);
    check_finite(host, {compact() ? source : grad}, flag, true);
  }
  const SymTensor wide_source =
      host.cast(source, DType::kFloat32, BufferCategory::kReduceTemporary);
  copy_across(host, wide_source, flat_view(host, g.host_gradient, o.destination, o.numel), false);
  record_copy(host);
  grad.reset();
}

/// async_accumulate_grad_in_cpu_via_gpu: what is there comes up, is added, and goes down again.
void Zero12::accumulate_on_host(Host& host, ParameterId id) {
  wait_for_copies(host);
  SymTensor& sum = host_sums_[id];
  const SymTensor grad = gradient(host, id);
  if (!sum) {
    sum = host_tensor(host, grad->numel, dtype_, BufferCategory::kShardedGradient,
                      options_.pin_memory);
    host.launch(OpKind::kFill, {}, {sum}, {0.0});
  }
  const SymTensor flat = flat_view(host, grad, 0, grad->numel);
  if (micro_ > 0) {
    const SymTensor staging = flat_view(host, device_staging_, 0, grad->numel);
    copy_across(host, sum, staging, false);
    host.launch(OpKind::kAddInPlace, {flat, staging}, {flat});
  }
  copy_across(host, flat, sum, false);
  record_copy(host);
}

}  // namespace foreshard::zero
