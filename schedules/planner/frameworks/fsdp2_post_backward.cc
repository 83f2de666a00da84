// What happens around a group's reduction: gradients are collected, buffers of earlier reductions
// let go, and the group is closed at the end of backward (F2-B-6, F2-B-7).

#include <algorithm>
#include <utility>

#include "schedules/planner/frameworks/fsdp2_error.h"
#include "schedules/planner/frameworks/fsdp2_host_time.h"
#include "schedules/planner/frameworks/fsdp2_reduce.h"
#include "schedules/planner/host/grad_dtype.h"

namespace foreshard::fsdp2 {

void Reducer::post_backward(ParamGroup& group, bool final_callback) {
  Decision d;
  d.kind = DecisionKind::kPostBackward;
  d.unit = group.unit;
  d.flag = final_callback;
  host_.decide(d);
  spend(host_, kPostBackwardCost, group);
  // A grouped unit of which only some modules ran (F2-RS-7).
  const bool partial_forward =
      group.modules.size() > 1 && group.training == TrainingState::kForward;
  group.training = TrainingState::kPostBackward;
  group.post_backward_pending = !group.switches.reduce_grads;
  if (group.post_backward_pending) {
    set_grad_dtypes(group, false);
    if (group.switches.reshard_after_backward) gatherer_.reshard(group);
    report_kept(group);
    return;
  }
  Gradients gradients = take_gradients(group);
  set_grad_dtypes(group, false);
  if (group.switches.reshard_after_backward) gatherer_.reshard(group);
  pop_reduce_inputs(group);
  if (gradients.tensors.empty()) return;
  wait_for_own_reduction(group);
  reduce(group, std::move(gradients));
  if (partial_forward) host_.wait_event(host_.stream(), *group.runtime.post_reduce_event);
}

void Reducer::report_kept(const ParamGroup& group) {
  if (!host_.has_sink()) return;
  std::vector<std::uint32_t> indices;
  std::vector<DType> dtypes;
  Decision d;
  d.kind = DecisionKind::kGradientsKept;
  d.unit = group.unit;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const SymTensor& leaf = group.runtime.parameters[i].unsharded;
    if (!leaf || !leaf->grad) continue;
    indices.push_back(static_cast<std::uint32_t>(i));
    dtypes.push_back(leaf->grad->dtype);
    d.bytes += leaf->grad->bytes();
  }
  d.indices = indices;
  d.dtypes = dtypes;
  host_.decide(d);
}

void Reducer::set_grad_dtypes(ParamGroup& group, bool defer_upcast) {
  for (const std::size_t i : group.wider_gradients) {
    SymTensor& leaf = group.runtime.parameters[i].unsharded;
    if (!leaf || !leaf->requires_grad) continue;
    if (defer_upcast) {
      if (leaf->grad || group.switches.reduce_grads) leaf->grad_dtype = kAnyGradDtype;
      continue;
    }
    const DType dtype = *group.parameters[i].unsharded_grad_dtype();
    if (leaf->grad && leaf->grad->dtype != dtype) {
      leaf->grad = host_.cast(leaf->grad, dtype, BufferCategory::kUnshardedGradient, group.unit);
    }
    leaf->grad_dtype = static_cast<std::int8_t>(dtype);
  }
}

bool Reducer::in_partial_output(const ParamGroup& group, std::size_t i) const {
  if (!group.runtime.partial_output) return false;
  const auto& layout = group.runtime.partial_layout;
  return std::any_of(layout.begin(), layout.end(),
                     [&](const auto& entry) { return entry.first == i; });
}

Reducer::Gradients Reducer::take_gradients(ParamGroup& group) {
  Gradients g;
  g.parameters.reserve(group.reduce_order.size());
  g.tensors.reserve(group.reduce_order.size());
  for (const std::size_t i : group.reduce_order) {
    const ShardedParameter& p = group.parameters[i];
    SymTensor& leaf = group.runtime.parameters[i].unsharded;
    if (!leaf) continue;
    SymTensor gradient = leaf->grad;
    if (!gradient &&
        (in_partial_output(group, i) || (group.switches.reduce_unused && leaf->requires_grad))) {
      const DType dtype = leaf->grad_dtype < 0 ? leaf->dtype : static_cast<DType>(leaf->grad_dtype);
      gradient = host_.empty(leaf->shape, dtype, BufferCategory::kUnshardedGradient, group.unit);
      host_.launch(OpKind::kFill, {}, {gradient}, {0.0});
    }
    if (!gradient) continue;
    if (!p.unsharded_grad_dtype() && group.switches.reduce_unused) {
      throw Fsdp2Error(Refusal::kValueError, p.name,
                       "reducing unused parameters needs a reduce dtype");
    }
    g.parameters.push_back(i);
    g.tensors.push_back(std::move(gradient));
    leaf->grad.reset();
  }
  return g;
}

void Reducer::pop_reduce_inputs(ParamGroup& group) {
  if (group.index != group.group_count - 1) return;
  CommContext& comm = *group.comm;
  while (static_cast<std::int64_t>(comm.reduce_inputs.size()) >= comm.max_reduce_inputs) {
    CommContext::ReduceInput oldest = std::move(comm.reduce_inputs.front());
    comm.reduce_inputs.erase(comm.reduce_inputs.begin());
    Decision d;
    d.kind = DecisionKind::kFreeReduceInput;
    d.unit = oldest.group->unit;
    d.bytes = oldest.held.buffer->bytes();
    host_.decide(d);
    if (oldest.held.event) {
      host_.wait_event(oldest.allocation_stream, *oldest.held.event);
      if (host_.stream() != oldest.allocation_stream)
        host_.wait_event(host_.stream(), *oldest.held.event);
    }
  }
}

void Reducer::wait_for_own_reduction(ParamGroup& group) {
  GroupRuntime& rt = group.runtime;
  if (rt.all_reduce) {
    Decision d;
    d.kind = DecisionKind::kFreeAllReduceBuffer;
    d.unit = group.unit;
    d.bytes = rt.all_reduce->buffer->bytes();
    host_.decide(d);
  }
  if (rt.post_reduce_event) {
    host_.wait_event(host_.stream(), *rt.post_reduce_event);
    rt.post_reduce_event.reset();
  }
  if (rt.all_reduce && rt.all_reduce->event)
    host_.wait_event(host_.stream(), *rt.all_reduce->event);
  rt.all_reduce.reset();
}

void Reducer::finalize(ParamGroup& group) {
  GroupRuntime& rt = group.runtime;
  rt.post_reduce_event.reset();
  // The records name the stray gather before the all-reduce buffer; PyTorch lets the buffer go
  // first, in one call.
  if (rt.all_reduce) {
    Decision d;
    d.kind = DecisionKind::kFreeAllReduceBuffer;
    d.unit = group.unit;
    d.bytes = rt.all_reduce->buffer->bytes();
    rt.all_reduce.reset();
    for (const EventId e : rt.offload_events) host_.program().sync_event(e);
    rt.offload_events.clear();
    gatherer_.drop_mistargeted(group);
    host_.decide(d);
  } else {
    for (const EventId e : rt.offload_events) host_.program().sync_event(e);
    rt.offload_events.clear();
    gatherer_.drop_mistargeted(group);
  }
  group.post_forward_indices.clear();
}

}  // namespace foreshard::fsdp2
