#include "schedules/planner/host/autograd.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/host/block_template.h"
#include "schedules/planner/host/few_tensors.h"
#include "schedules/planner/host/grad_dtype.h"
#include "schedules/planner/host/graph_task.h"
#include "schedules/planner/host/host_impl.h"
#include "schedules/planner/host/host_refusal.h"

namespace foreshard {

// ----------------------------------------------------------------------------------------------
// nodes

void AutogradNode::add_edge(AutogradEdge e) {
  if (inline_edges < kInlineEdges) {
    edge_[inline_edges++] = std::move(e);
  } else {
    more_edges.push_back(std::move(e));
  }
}

namespace {

/// Nodes whose last reference went while another one is being destroyed: a long graph must not
/// recurse once per node, and a list through the nodes takes no memory.
struct Doomed {
  AutogradNode* last = nullptr;
  bool running = false;
};
thread_local Doomed doomed;

void clear_node(AutogradNode& n) {
  HostImpl& impl = n.host->impl();
  impl.release_saved(n);
  for (int i = 0; i < n.edges(); ++i) n.edge(i) = {};
  n.inline_edges = 0;
  n.more_edges.clear();
  if (n.variable && n.variable->grad_accumulator == &n) n.variable->grad_accumulator = nullptr;
  n.variable = nullptr;
  n.gradients_in = 1;
  n.mixed_dtypes = n.runs_without_gradients = false;
  n.late_edge = -1;
  n.sizes = nullptr;
  n.stream = 0;
  n.backward = nullptr;
  n.first_hook = -1;
  n.block = -1;
  n.pending = 0;
  n.visit = 0;
  n.slots = UINT32_MAX;
  n.refs = 0;
  impl.nodes.give_back(&n);
}

}  // namespace

void destroy(AutogradNode* n) {
  n->next_doomed = std::exchange(doomed.last, n);
  if (doomed.running) return;
  doomed.running = true;
  while (AutogradNode* const next = doomed.last) {
    doomed.last = std::exchange(next->next_doomed, nullptr);
    clear_node(*next);
  }
  doomed.running = false;
}

void HostImpl::release(SavedTensor& s) {
  s.tensor.reset();
  if (s.frame < 0 || closing) return;  // A plan that ends early drops its frames as a whole.
  CheckpointFrame& f = frames[static_cast<std::size_t>(s.frame)];
  f.holder_alive[static_cast<std::size_t>(s.slot)] = 0;
  if (static_cast<std::size_t>(s.slot) < f.recomputed.size())
    f.recomputed[static_cast<std::size_t>(s.slot)].reset();
  --f.live_holders;
  const std::int32_t frame = s.frame;
  s.frame = s.slot = -1;
  drop_frame_if_done(frame);
}

void HostImpl::release_saved(AutogradNode& n) {
  for (int i = 0; i < n.saved_count(); ++i) release(n.saved(i));
  n.inline_saved = 0;
  n.more_saved.clear();
}

const SymTensor& BackwardContext::saved(int i) {
  SymTensor& slot = unpacked_[static_cast<std::size_t>(count_++)];
  slot = host.impl().unpack(node.saved(i));
  return slot;
}

Ref<AutogradNode> HostImpl::new_node(std::uint64_t sequence, BackwardFunction backward) {
  AutogradNode* const n = nodes.take();
  n->host = &host;
  n->sequence = sequence;
  n->backward = backward;
  n->scope = host.scope_;
  n->stream = node_streams ? host.stream_ : StreamIndex{0};
  return Ref<AutogradNode>(n);
}

Ref<AutogradNode> HostImpl::gradient_edge_node(SymTensorImpl& t) {
  if (t.grad_fn) return t.grad_fn;
  if (t.grad_accumulator) return Ref<AutogradNode>(t.grad_accumulator);
  Ref<AutogradNode> n = new_node(kAccumulateSequence, nullptr);
  n->dtype = t.dtype;
  n->variable = &t;
  t.grad_accumulator = n.get();
  return n;
}

void HostImpl::add_hook(AutogradNode& n, HookEntry e) {
  const auto index = static_cast<std::int32_t>(hooks.size());
  hooks.push_back(e);
  if (n.first_hook < 0) {
    n.first_hook = index;
    return;
  }
  std::int32_t at = n.first_hook;
  while (hooks[static_cast<std::size_t>(at)].next >= 0)
    at = hooks[static_cast<std::size_t>(at)].next;
  hooks[static_cast<std::size_t>(at)].next = index;
}

// ----------------------------------------------------------------------------------------------
// public face

void Host::register_tensor_hook(const SymTensor& t, std::uint32_t payload) {
  Ref<AutogradNode> n = impl_->gradient_edge_node(*t);
  impl_->add_hook(*n, {payload, t->output_nr, HookKind::kTensorPreHook, -1});
  // A leaf's hooks belong to the tensor; its node may come and go, so keep it while the tensor
  // lives.
  if (t->is_leaf()) impl_->kept_accumulators.push_back(std::move(n));
}

Ref<AutogradNode> Host::grad_accumulator(const SymTensor& leaf) {
  return impl_->gradient_edge_node(*leaf);
}

void Host::register_accumulate_hook(const Ref<AutogradNode>& accumulator, std::uint32_t payload) {
  impl_->add_hook(*accumulator, {payload, 0, HookKind::kNodePostHook, -1});
}

void Host::remove_accumulate_hooks(const Ref<AutogradNode>& accumulator) {
  std::int32_t* at = &accumulator->first_hook;
  while (*at >= 0) {
    HookEntry& e = impl_->hooks[static_cast<std::size_t>(*at)];
    if (e.kind == HookKind::kNodePostHook) {
      *at = e.next;
    } else {
      at = &e.next;
    }
  }
}

Ref<AutogradNode> Host::gradient_node(const SymTensor& t) { return impl_->gradient_edge_node(*t); }

void Host::run_backward_on_one_stream() { impl_->node_streams = false; }

bool Host::will_run(const SymTensor& t) const {
  const AutogradNode* const n = t->grad_fn ? t->grad_fn.get() : t->grad_accumulator;
  return n != nullptr && impl_->running_backward != 0 && n->visit == impl_->running_backward;
}

bool Host::will_run(const Ref<AutogradNode>& node) const {
  return impl_->running_backward != 0 && node->visit == impl_->running_backward;
}

std::vector<const SymTensorImpl*> Host::leaves_of(std::span<const SymTensor> roots) {
  std::vector<const SymTensorImpl*> leaves;
  std::vector<AutogradNode*> stack;
  const std::uint32_t mark = ++impl_->backward_number;
  const auto see = [&](AutogradNode* n) {
    if (!n || n->visit == mark) return;
    n->visit = mark;
    stack.push_back(n);
  };
  for (const SymTensor& r : roots)
    if (r) see(r->grad_fn.get());
  while (!stack.empty()) {
    AutogradNode* const n = stack.back();
    stack.pop_back();
    if (!n->backward && n->variable) leaves.push_back(n->variable);
    for (int i = 0; i < n->edges(); ++i) see(n->edge(i).node.get());
  }
  return leaves;
}

void Host::queue_callback(std::uint32_t payload) {
  if (!in_backward()) throw InternalError("queue_callback outside of backward");
  impl_->callbacks.push_back(payload);
}

namespace {

/// Backward of a framework's pass-through function: all gradients go on unchanged.
void pass_through(BackwardContext& ctx) {
  BlockTemplates* const templates = ctx.host.impl().block_templates.get();
  if (templates != nullptr) templates->before_function(ctx.node);
  ctx.host.framework()->on_function_backward(ctx.host, ctx.node.payload);
  if (templates != nullptr) templates->after_function(ctx.node);
  for (int i = 0; i < ctx.gradients(); ++i) {
    if (ctx.needs(i)) ctx.set(i, ctx.grad(i));
  }
}

}  // namespace

void HostImpl::identity(std::span<SymTensor> passed, BackwardFunction backward,
                        std::uint32_t payload) {
  const Ref<AutogradNode> node = new_node(next_sequence++, backward);
  AutogradNode* const n = node.get();
  n->payload = payload;
  n->scope = host.scope_;
  n->gradients_in = static_cast<std::uint16_t>(passed.size());
  n->dtype = passed[0]->dtype;
  n->runs_without_gradients = true;
  for (const SymTensor& t : passed) n->mixed_dtypes = n->mixed_dtypes || t->dtype != n->dtype;
  for (const SymTensor& t : passed) {
    n->add_edge(t->requires_grad ? AutogradEdge{gradient_edge_node(*t), t->output_nr}
                                 : AutogradEdge{});
  }
  for (std::size_t i = 0; i < passed.size(); ++i) {
    SymTensor view = host.detach(passed[i]);
    view->base = passed[i]->base ? passed[i]->base : passed[i];
    view->requires_grad = is_floating(passed[i]->dtype);
    view->grad_fn = node;
    view->output_nr = static_cast<std::uint16_t>(i);
    passed[i] = std::move(view);
  }
}

void Host::apply_function(std::span<SymTensor> tensors, std::uint32_t payload) {
  const auto takes_gradient = [](const SymTensor& t) { return t && t->requires_grad; };
  if (!grad_enabled_ || std::none_of(tensors.begin(), tensors.end(), takes_gradient)) return;
  BlockTemplates* const templates = impl_->block_templates.get();
  if (templates != nullptr && templates->takes_function(impl_->next_sequence, payload)) return;
  impl_->identity(tensors, pass_through, payload);
}

void Host::backward(std::span<const SymTensor> roots) { impl_->run_backward(roots, {}); }

}  // namespace foreshard
