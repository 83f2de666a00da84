// The engine of backward: one node after the other, gradients handed on, validated and accumulated.

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/host/autograd.h"
#include "schedules/planner/host/block_template.h"
#include "schedules/planner/host/few_tensors.h"
#include "schedules/planner/host/grad_dtype.h"
#include "schedules/planner/host/graph_task.h"
#include "schedules/planner/host/host_impl.h"
#include "schedules/planner/host/host_refusal.h"

namespace foreshard {

/// Counts, for each node reachable from `root`, the edges that lead to it.
void HostImpl::count_dependencies(GraphTask& task, AutogradNode* root) {
  const auto see = [&](AutogradNode* n) {
    if (n->visit == task.number) return;
    if (host.backward_depth_ > 1 && n->visit != 0 && n->pending > 0) {
      task.outer.push_back({Ref<AutogradNode>(n), n->visit, n->pending, n->slots});
    }
    n->visit = task.number;
    n->pending = 0;
    n->slots = UINT32_MAX;
    task.stack.push_back(n);
  };
  see(root);
  while (!task.stack.empty()) {
    AutogradNode* const n = task.stack.back();
    task.stack.pop_back();
    for (int i = 0; i < n->edges(); ++i) {
      if (AutogradNode* const next = n->edge(i).node.get()) {
        see(next);
        ++next->pending;
      }
    }
  }
}

/// A gradient made on one stream and used on another must not be reused too early
/// (_record_stream_any_impl).
void HostImpl::use_on_stream(const SymTensor& t, StreamIndex stream) {
  const SymStorage& s = *t->storage;
  if (s.buffer.valid() && s.space == MemorySpace::kDevice)
    host.program_.record_stream(s.buffer, stream);
}

/// InputBuffer::add: the first gradient is taken as it is; further ones are added, in place if the
/// buffer holds the only reference to a dense tensor and its storage. A producer on another stream
/// than the consumer leaves an event for it; sums are made on the consumer's stream.
void HostImpl::accumulate_input(GraphTask& task, StreamIndex producer, AutogradNode* next,
                                int input, SymTensor&& g) {
  if (next->slots == UINT32_MAX) {
    next->slots = static_cast<std::uint32_t>(task.slots.size());
    for (std::uint16_t i = 0; i < next->gradients_in; ++i) {
      task.slots.emplace_back();
      task.ready_events.emplace_back();
    }
  }
  SymTensor& slot = task.slots[next->slots + static_cast<std::uint32_t>(input)];
  if (!g) return;
  EventId& ready = task.ready_events[next->slots + static_cast<std::uint32_t>(input)];
  const bool crosses = producer != next->stream;
  if (crosses) use_on_stream(g, next->stream);
  if (!slot) {
    slot = std::move(g);
    if (crosses) ready = host.record_event(producer);
    return;
  }
  const StreamGuard on_consumer(host, next->stream);
  if (crosses) host.wait_event(next->stream, host.record_event(producer));
  if (ready.valid()) host.wait_event(next->stream, ready);
  ready = {};
  SymTensor other = std::move(g);
  if (slot->refs == 1 && slot->storage->refs == 1) {
    host.launch(OpKind::kAddInPlace, {slot, other}, {slot});
  } else {
    const DType dtype = promoted(slot->dtype, other->dtype);
    SymTensor sum = host.empty(slot->shape, dtype, BufferCategory::kBackwardTemporary);
    host.launch(OpKind::kAdd, {slot, other}, {sum});
    slot = std::move(sum);
  }
}

/// The dtype in which a leaf takes a gradient that arrives in `arriving`; `own`: the dtype of its
/// AccumulateGrad node.
DType gradient_dtype(const SymTensorImpl& leaf, DType own, DType arriving) {
  if (leaf.grad_dtype == kAnyGradDtype) return arriving;
  return leaf.grad_dtype >= 0 ? static_cast<DType>(leaf.grad_dtype) : own;
}

/// AccumulateGrad (accumulate_grad.h): take the gradient over, or add in place to the one that is
/// there.
void HostImpl::accumulate_gradient(AutogradNode& node, SymTensor&& gradient, bool has_post_hooks) {
  SymTensorImpl& leaf = *node.variable;
  SymTensor g = std::move(gradient);
  // The node keeps the dtype that the leaf had when it was made; the leaf's data may have been
  // exchanged since.
  const DType wanted = gradient_dtype(leaf, node.dtype, g->dtype);
  if (g->dtype != wanted)
    g = host.cast(g, wanted, BufferCategory::kUnshardedGradient, leaf.storage->unit);
  if (leaf.grad) {
    host.launch(OpKind::kAddInPlace, {leaf.grad, g}, {leaf.grad});
    ++leaf.grad->version;
    return;
  }
  const std::uint32_t expected = has_post_hooks ? 2 : 1;
  const bool same_layout = g->stride == leaf.stride || (is_contiguous(*g) && is_contiguous(leaf));
  if (g->refs <= expected && same_layout) {
    host.set_category(g, BufferCategory::kUnshardedGradient, leaf.storage->unit);
    leaf.grad = host.detach(g);
    leaf.grad->base = g->base ? g->base : g;
  } else {
    SymTensor copy =
        host.empty(leaf.shape, g->dtype, BufferCategory::kUnshardedGradient, leaf.storage->unit);
    host.launch(OpKind::kCopy, {g}, {copy});
    leaf.grad = std::move(copy);
  }
}

/// A gradient of another dtype than the forward tensor's is converted.
void HostImpl::validate_outputs(AutogradNode& node, std::span<SymTensor> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!out[i]) continue;
    const AutogradNode* const next = node.edge(static_cast<int>(i)).node.get();
    if (!next || next->mixed_dtypes) continue;
    DType wanted = next->dtype;
    if (!next->backward) {  // AccumulateGrad: the leaf may ask for gradients of another dtype.
      if (!next->variable || static_cast<int>(i) == node.late_edge) continue;
      wanted = gradient_dtype(*next->variable, wanted, out[i]->dtype);
    }
    if (out[i]->dtype != wanted)
      out[i] = host.cast(out[i], wanted, BufferCategory::kBackwardTemporary);
  }
}

/// The node's stream waits for what other streams made of its gradients; then its tensor hooks.
/// True: it has post hooks.
bool HostImpl::run_pre_hooks(GraphTask& task, const AutogradNode& node,
                             std::span<SymTensor> gradients) {
  for (std::uint32_t i = 0; i < gradients.size(); ++i) {
    if (const EventId e = task.ready_events[node.slots + i]; e.valid())
      host.wait_event(node.stream, e);
  }
  bool has_post_hooks = false;
  for (std::int32_t h = node.first_hook; h >= 0;) {
    const HookEntry e = hooks[static_cast<std::size_t>(h)];
    if (e.kind == HookKind::kNodePostHook) {
      has_post_hooks = true;
    } else {
      host.framework_->on_tensor_hook(host, e.payload, gradients[e.input]);
    }
    h = e.next;
  }
  return has_post_hooks;
}

void HostImpl::run_post_hooks(const AutogradNode& node) {
  for (std::int32_t h = node.first_hook; h >= 0;) {
    const HookEntry e = hooks[static_cast<std::size_t>(h)];
    if (e.kind == HookKind::kNodePostHook) host.framework_->on_accumulated(host, e.payload);
    h = e.next;
  }
}

void HostImpl::evaluate_leaf(GraphTask& task, AutogradNode& node) {
  SymTensor gradient = std::move(task.slots[node.slots]);
  const bool has_post_hooks = run_pre_hooks(task, node, {&gradient, 1});
  task.leaf_streams.push_back(node.stream);
  const SymTensor kept = has_post_hooks ? gradient : SymTensor();  // The hooks see the inputs.
  if (gradient && node.variable) accumulate_gradient(node, std::move(gradient), has_post_hooks);
  if (has_post_hooks) run_post_hooks(node);
}

void HostImpl::evaluate(GraphTask& task, AutogradNode* node) {
  host.scope_ = node->scope;
  const StreamGuard on_own_stream(host, node->stream);
  if (!node->backward) return evaluate_leaf(task, *node);
  if (node->scope.value < ran_backward.size()) ran_backward[node->scope.value] = 1;
  FewTensors arrived(node->gradients_in), made(static_cast<std::size_t>(node->edges()));
  const std::span<SymTensor> in = arrived.all(), out = made.all();
  for (std::uint32_t i = 0; i < in.size(); ++i) in[i] = std::move(task.slots[node->slots + i]);
  const bool has_post_hooks = run_pre_hooks(task, *node, in);
  if (block_templates && node->block >= 0) block_templates->enter_backward(*node, in);
  {
    BackwardContext ctx(host, *node, in, out);
    bool defined = false;
    for (const SymTensor& g : in) defined = defined || g;
    if (defined || node->runs_without_gradients) node->backward(ctx);
  }
  validate_outputs(*node, out);
  if (has_post_hooks) run_post_hooks(*node);
  for (SymTensor& t : in) t.reset();
  release_saved(*node);
  for (std::size_t i = 0; i < out.size(); ++i) {
    AutogradEdge& e = node->edge(static_cast<int>(i));
    AutogradNode* const next = e.node.get();
    if (!next) continue;
    if (block_templates) block_templates->before_edge(*node, *next, e.input, out[i]);
    accumulate_input(task, node->stream, next, e.input, std::move(out[i]));
    if (block_templates) block_templates->after_edge(*node, *next);
    if (--next->pending == 0) task.ready.push({next});
  }
}

void HostImpl::run_backward(std::span<const SymTensor> roots,
                            std::span<const SymTensor> gradients) {
  const bool grad_before = host.grad_enabled_;
  const ScopeId scope_before = host.scope_;
  const std::uint32_t running_before = running_backward;
  std::vector<std::uint32_t> callbacks_before = std::move(callbacks);
  callbacks.clear();
  host.grad_enabled_ = false;
  ++host.backward_depth_;
  GraphTask task;
  task.number = running_backward = ++backward_number;
  GraphTask* const task_before = std::exchange(running_task, &task);
  std::vector<SymTensor> ones(gradients.begin(), gradients.end());
  for (const SymTensor& r : roots) {
    if (!gradients.empty()) break;
    SymTensor one = host.empty(r->shape, r->dtype, BufferCategory::kBackwardTemporary);
    host.launch(OpKind::kFill, {}, {one}, {1.0});
    ones.push_back(std::move(one));
  }
  for (const SymTensor& r : roots) {
    if (!r->requires_grad) {
      throw HostRefusal("loss", "requires no gradient",
                        "trainable parameters; reentrant checkpoints give none where no input of a "
                        "block requires one (frozen embeddings)");
    }
    count_dependencies(task, gradient_edge_node(*r).get());
  }
  // The engine's root node feeds every root; a root that another root's graph reaches waits for
  // that too.
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const Ref<AutogradNode> n = gradient_edge_node(*roots[i]);
    accumulate_input(task, host.stream_, n.get(), roots[i]->output_nr, SymTensor(ones[i]));
  }
  for (const SymTensor& r : roots) {
    AutogradNode* const n = gradient_edge_node(*r).get();
    if (n->pending == 0) {
      n->pending = -1;
      task.ready.push({n});
    }
  }
  while (!task.ready.empty()) {
    AutogradNode* const n = task.ready.top().node;
    task.ready.pop();
    if (block_templates) block_templates->before(*n);
    evaluate(task, n);
    if (block_templates) block_templates->after(*n);
  }
  if (block_templates) block_templates->end_backward();
  for (GraphTask::Outer& o : task.outer) {
    o.node->visit = o.visit;
    o.node->pending = o.pending;
    o.node->slots = o.slots;
  }
  // The caller's stream waits for the leaves' before the callbacks.
  std::sort(task.leaf_streams.begin(), task.leaf_streams.end());
  task.leaf_streams.erase(std::unique(task.leaf_streams.begin(), task.leaf_streams.end()),
                          task.leaf_streams.end());
  for (const StreamIndex s : task.leaf_streams)
    if (s != host.stream_) host.wait_stream(host.stream_, s);
  // Callbacks may queue further ones.
  for (std::size_t i = 0; i < callbacks.size(); ++i)
    host.framework_->on_backward_callback(host, callbacks[i]);
  callbacks = std::move(callbacks_before);
  running_task = task_before;
  running_backward = running_before;
  --host.backward_depth_;
  host.grad_enabled_ = grad_before;
  host.scope_ = scope_before;
}

}  // namespace foreshard
