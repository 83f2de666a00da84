#include "schedules/planner/recipes/recipe.h"

namespace foreshard {

void Record::start(BackwardFunction backward) {
  HostImpl& impl = host_.impl();
  node_ = impl.new_node(impl.next_sequence++, backward);
}

namespace {

AutogradEdge edge_of(HostImpl& impl, const SymTensor& t) {
  if (!t || !t->requires_grad) return {};
  return {impl.gradient_edge_node(*t), t->output_nr};
}

}  // namespace

Record::Record(Host& host, BackwardFunction backward,
               std::initializer_list<const SymTensor*> inputs)
    : host_(host) {
  if (!host.grad_enabled()) return;
  bool any = false;
  for (const SymTensor* t : inputs) any = any || (*t && (*t)->requires_grad);
  if (!any) return;
  start(backward);
  for (const SymTensor* t : inputs) node_->add_edge(edge_of(host.impl(), *t));
}

Record::Record(Host& host, BackwardFunction backward, std::span<const SymTensor> inputs)
    : host_(host) {
  if (!host.grad_enabled()) return;
  bool any = false;
  for (const SymTensor& t : inputs) any = any || (t && t->requires_grad);
  if (!any) return;
  start(backward);
  for (const SymTensor& t : inputs) node_->add_edge(edge_of(host.impl(), t));
}

namespace {

/// A custom function's forward runs without gradients, so that what it makes looks like a
/// temporary; its result, and what backward needs of it, are activations all the same.
void outlives_forward(Host& host, const SymTensor& t) {
  if (t && t->storage->category == BufferCategory::kForwardTemporary)
    host.set_category(t, BufferCategory::kActivation);
}

}  // namespace

void Record::save(const SymTensor& t) {
  outlives_forward(host_, t);
  SavedTensor s = host_.impl().pack(t);
  if (node_->inline_saved < kInlineSaved) {
    node_->saved_[node_->inline_saved++] = std::move(s);
  } else {
    node_->more_saved.push_back(std::move(s));
  }
}

void Record::save_output(const SymTensor& t) {
  SymTensor alias = host_.detach(t);
  alias->requires_grad = true;
  save(alias);
}

void Record::attach(const SymTensor& t, int nr) const {
  if (!node_) return;
  if (nr == 0) node_->dtype = t->dtype;
  if (nr >= node_->gradients_in) node_->gradients_in = static_cast<std::uint16_t>(nr + 1);
  if (!is_floating(t->dtype)) return;
  outlives_forward(host_, t);
  t->requires_grad = true;
  t->grad_fn = node_;
  t->output_nr = static_cast<std::uint16_t>(nr);
}

BufferCategory result_category(const Host& host) {
  if (host.recomputing()) return BufferCategory::kRecomputedActivation;
  if (host.in_backward()) return BufferCategory::kBackwardTemporary;
  if (host.phase() == Phase::kLoss) return BufferCategory::kLogitsAndLoss;
  return host.grad_enabled() ? BufferCategory::kActivation : BufferCategory::kForwardTemporary;
}

SymTensor empty_result(Host& host, const Shape& shape, DType dtype) {
  return host.empty(shape, dtype, result_category(host));
}

SymTensor empty_temporary(Host& host, std::int64_t bytes) {
  return host.empty({bytes}, DType::kUInt8, BufferCategory::kWorkspace);
}

void blas_workspace(Host& host, bool lt) {
  empty_temporary(host, lt ? std::int64_t{1} << 20 : std::int64_t{32} << 20);
}

}  // namespace foreshard
