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
  if (adds_on_host()) accumulate_on_host(host, id);
  if (!boundary_) return;
  const SymTensor source = compact() ? flat_view(host, g.compact, o.destination, o.numel)
                                     : flat_view(host, grad, o.source, o.numel);
  parameter_norms_[id] = wide_norm(host, source);
  send_down(host, compact() ? source : grad, source,
            flat_view(host, g.host_gradient, o.destination, o.numel));
  grad.reset();
}

/// `source`, a part of `tested`, goes down in fp32 once `tested` is found finite.
void Zero12::send_down(Host& host, const SymTensor& tested, const SymTensor& source,
                       const SymTensor& destination) {
  {
    const SymTensor flag = host.empty({1}, DType::kUInt8, BufferCategory::kWorkspace);
    check_finite(host, {tested}, flag, true);
  }
  const SymTensor wide_source =
      host.cast(source, DType::kFloat32, BufferCategory::kReduceTemporary);
  copy_across(host, wide_source, destination, false);
  record_copy(host);
}

/// What the rank of `guests_` does with its part while all others wait for it in the next
/// collective, through host memory that this rank has.
void Zero12::offload_guest(Host& host, ParameterId id) {
  const auto guest = guests_.find(id);
  if (guest == guests_.end()) return;
  const Overlap o = overlap_of(id, guest->second);
  if (o.numel <= 0) return;
  const SymTensor grad = gradient(host, id);
  if (adds_on_host()) add_through_host(host, grad, flat_view(host, host_staging_, 0, grad->numel));
  if (!boundary_) return;
  const SymTensor source = flat_view(host, grad, o.source, o.numel);
  const FlatGroup& g = groups_[places_.at(id).group];
  wide_norm(host, source);
  send_down(host, compact() ? source : grad, source, flat_view(host, g.host_gradient, 0, o.numel));
}

/// async_accumulate_grad_in_cpu_via_gpu.
void Zero12::accumulate_on_host(Host& host, ParameterId id) {
  SymTensor& sum = host_sums_[id];
  const SymTensor grad = gradient(host, id);
  if (!sum) {
    wait_for_copies(host);
    sum = host_tensor(host, grad->numel, dtype_, BufferCategory::kShardedGradient,
                      options_.pin_memory);
    host.launch(OpKind::kFill, {}, {sum}, {0.0});
  }
  add_through_host(host, grad, sum);
}

/// What is there comes up, is added, and goes down again.
void Zero12::add_through_host(Host& host, const SymTensor& gradient, const SymTensor& sum) {
  wait_for_copies(host);
  const SymTensor flat = flat_view(host, gradient, 0, gradient->numel);
  if (micro_ > 0) {
    const SymTensor staging = flat_view(host, device_staging_, 0, gradient->numel);
    copy_across(host, sum, staging, false);
    host.launch(OpKind::kAddInPlace, {flat, staging}, {flat});
  }
  copy_across(host, flat, sum, false);
  record_copy(host);
}

}  // namespace foreshard::zero
