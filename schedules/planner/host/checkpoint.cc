// Activation checkpointing as torch.utils.checkpoint(use_reentrant=False) does it: tensors saved
// inside a region are not kept; the first one that backward asks for runs the region's forward
// again, which stops as soon as all are back (CK-3). Regions nest: inputs of an inner region are
// saved tensors of the outer one. Source: torch/utils/checkpoint.py (2.15).

#include <utility>

#include "core/error.h"
#include "schedules/planner/host/host_impl.h"
#include "schedules/planner/host/host_refusal.h"
#include "schedules/planner/host/host_time.h"

namespace foreshard {

namespace {

/// The policy of CK-5 for the n-th call (from 1) of an operator.
bool keeps(KeptOp op, std::int32_t n) { return op == KeptOp::kAttention || n % 2 == 1; }

}  // namespace

bool HostImpl::take_kept(KeptOp op, std::span<SymTensor* const> results) {
  if (save_scopes.empty() || save_scopes.back().frame < 0 || !save_scopes.back().recomputing)
    return false;
  CheckpointFrame& f = frames[static_cast<std::size_t>(save_scopes.back().frame)];
  if (!f.selective) return false;
  if (op == KeptOp::kProduct) ++f.products_again;
  if (!keeps(op, f.products_again) || f.kept_taken >= f.kept.size()) return false;
  std::array<SymTensor, 4> entry = std::move(f.kept[f.kept_taken++]);
  for (std::size_t i = 0; i < results.size(); ++i) *results[i] = std::move(entry[i]);
  return true;
}

void HostImpl::offer_kept(KeptOp op, std::span<SymTensor* const> results) {
  if (save_scopes.empty() || save_scopes.back().frame < 0 || save_scopes.back().recomputing) return;
  CheckpointFrame& f = frames[static_cast<std::size_t>(save_scopes.back().frame)];
  if (!f.selective) return;
  if (op == KeptOp::kProduct) ++f.products;
  if (!keeps(op, f.products)) return;
  std::array<SymTensor, 4> entry;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (*results[i]) entry[i] = host.detach(*results[i]);
  }
  f.kept.push_back(std::move(entry));
}

SavedTensor HostImpl::pack(const SymTensor& t) {
  if (save_scopes.empty() || !t) return {t, -1, -1};
  const SaveScope scope = save_scopes.back();
  if (scope.frame < 0) return {t, -1, -1};
  CheckpointFrame& f = frames[static_cast<std::size_t>(scope.frame)];
  if (!scope.recomputing) {
    f.holder_alive.push_back(1);
    ++f.live_holders;
    return {SymTensor(), scope.frame, static_cast<std::int32_t>(f.holder_alive.size() - 1)};
  }
  SymTensor x = host.detach(t);
  x->requires_grad = t->requires_grad;
  const auto slot = static_cast<std::size_t>(f.counter++);
  if (slot >= f.holder_alive.size()) {
    if (host.config().checkpoint_early_stop)
      throw InternalError("recomputation saves more tensors than the forward");
    return {x, -1, -1};
  }
  if (f.recomputed.size() < f.holder_alive.size()) f.recomputed.resize(f.holder_alive.size());
  if (f.holder_alive[slot]) f.recomputed[slot] = x;
  if (host.config().checkpoint_early_stop && slot + 1 == f.holder_alive.size())
    throw StopRecomputation{};
  return {std::move(x), -1, -1};
}

SymTensor HostImpl::unpack(SavedTensor& s) {
  if (s.frame < 0) return s.tensor;
  if (frames[static_cast<std::size_t>(s.frame)].recomputed_in != backward_number)
    recompute(s.frame);
  CheckpointFrame& f = frames[static_cast<std::size_t>(s.frame)];
  return std::move(f.recomputed[static_cast<std::size_t>(s.slot)]);
}

void HostImpl::drop_frame_if_done(std::int32_t frame) {
  CheckpointFrame& f = frames[static_cast<std::size_t>(frame)];
  if (!f.in_use || f.live_holders > 0 || f.forward_running) return;
  f.in_use = false;
  std::vector<SavedTensor> arguments = std::move(f.arguments);
  f.arguments.clear();
  f.holder_alive.clear();
  f.recomputed.clear();
  f.recomputed_in = 0;
  f.counter = 0;
  f.kept.clear();
  f.kept_taken = 0;
  f.products = f.products_again = 0;
  free_frames.push_back(frame);
  // A list drops its last item first.
  for (auto a = arguments.rbegin(); a != arguments.rend(); ++a) release(*a);
}

void HostImpl::run_checkpointed(ModuleId m, std::span<SymTensor> inputs,
                                std::span<SymTensor> outputs) {
  if (host.config().checkpoint_outside_units) return host.call_hooked(m, inputs, outputs);
  run_module(m, inputs, outputs);
}

void HostImpl::call_checkpointed(ModuleId m, std::span<SymTensor> inputs,
                                 std::span<SymTensor> outputs) {
  if (!host.grad_enabled_) return run_checkpointed(m, inputs, outputs);
  if (host.config().checkpoint_reentrant) return call_reentrant(m, inputs, outputs);
  std::int32_t index = 0;
  if (free_frames.empty()) {
    index = static_cast<std::int32_t>(frames.size());
    frames.emplace_back();
    free_frames.reserve(frames.capacity());  // Destructors give them back.
  } else {
    index = free_frames.back();
    free_frames.pop_back();
  }
  {
    std::vector<SavedTensor> arguments;
    for (const SymTensor& t : inputs) arguments.push_back(pack(t));
    CheckpointFrame& f = frames[static_cast<std::size_t>(index)];
    f.in_use = true;
    f.forward_running = true;
    f.module = m;
    f.autocast = autocast;
    f.draws = draws;
    f.selective = host.config().checkpoint == CheckpointKind::kSelectiveOp;
    f.arguments = std::move(arguments);
  }
  struct Scope {
    HostImpl& impl;
    std::int32_t index;
    ~Scope() {
      impl.save_scopes.pop_back();
      impl.frames[static_cast<std::size_t>(index)].forward_running = false;
      impl.drop_frame_if_done(index);
    }
  };
  save_scopes.push_back({index, false});
  const bool dispatches =
      frames[static_cast<std::size_t>(index)].selective && !host.config().compile;
  spend_host(host, dispatches ? kSelectiveForwardUs : kCheckpointForwardUs, "checkpointing");
  const Scope scope{*this, index};
  run_checkpointed(m, inputs, outputs);
}

void HostImpl::recompute(std::int32_t frame) {
  ModuleId module;
  std::vector<SymTensor> arguments;
  {
    // An argument of a nested region may itself need the outer region's recomputation, which may
    // add frames.
    module = frames[static_cast<std::size_t>(frame)].module;
    const std::size_t n = frames[static_cast<std::size_t>(frame)].arguments.size();
    for (std::size_t i = 0; i < n; ++i) {
      SavedTensor saved = frames[static_cast<std::size_t>(frame)].arguments[i];
      arguments.push_back(unpack(saved));
    }
    CheckpointFrame& f = frames[static_cast<std::size_t>(frame)];
    f.recomputed_in = backward_number;
    f.counter = 0;
    f.products_again = 0;
    f.forward_running = true;
  }
  const ScopeId scope_before = host.scope_;
  const bool grad_before = host.grad_enabled_;
  const bool autocast_before = autocast;
  const std::int64_t draws_before = draws;
  const Phase phase_before = host.phase_;
  const std::size_t scopes_before = save_scopes.size();
  host.grad_enabled_ = true;
  ++host.recompute_depth_;
  host.set_phase(Phase::kRecompute);
  host.decide({.kind = DecisionKind::kRecomputeBegin, .module = module});
  autocast = frames[static_cast<std::size_t>(frame)].autocast;
  if (autocast) ++autocast_depth;
  draws = frames[static_cast<std::size_t>(frame)].draws;
  const bool dispatches =
      frames[static_cast<std::size_t>(frame)].selective && !host.config().compile;
  spend_host(host, dispatches ? kSelectiveBackwardUs : kCheckpointBackwardUs, "checkpointing");
  save_scopes.push_back({frame, true});
  const Module& def = host.model().at(module);
  std::vector<SymTensor> outputs(def.outputs.size());
  try {
    run_checkpointed(module, arguments, outputs);
  } catch (const StopRecomputation&) {
    // Every saved tensor is back.
  }
  save_scopes.resize(scopes_before);
  if (autocast) end_autocast();
  autocast = autocast_before;
  draws = draws_before;
  host.decide({.kind = DecisionKind::kRecomputeEnd, .module = module});
  host.set_phase(phase_before);
  --host.recompute_depth_;
  host.grad_enabled_ = grad_before;
  host.scope_ = scope_before;
  frames[static_cast<std::size_t>(frame)].forward_running = false;
}

// ------------------------------------------------------------------------------------------------
// reentrant

namespace {

/// CheckpointFunction.backward: the forward again on detached inputs with autograd on, then a
/// backward of its own from the outputs, inside the running one; the gradients of the detached
/// inputs go on.
void reentrant_backward(BackwardContext& ctx) {
  HostImpl& impl = ctx.host.impl();
  const ModuleId module(ctx.node.payload);
  std::vector<SymTensor> inputs, outputs(ctx.host.model().at(module).outputs.size()), roots,
      gradients;
  for (int i = 0; i < ctx.node.saved_count(); ++i) {
    const SymTensor& saved = ctx.saved(i);
    inputs.push_back(saved ? ctx.host.detach(saved) : SymTensor());
    if (saved) inputs.back()->requires_grad = saved->requires_grad;
  }
  std::vector<SymTensor> arguments = inputs;
  impl.rerun(module, ctx.node.ints[0], arguments, outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i] || !outputs[i]->requires_grad) continue;
    roots.push_back(outputs[i]);
    gradients.push_back(ctx.grad(static_cast<int>(i)));
  }
  if (roots.empty()) {
    throw HostRefusal(ctx.host.model().at(module).name,
                      "no output of the checkpoint requires a gradient",
                      "a checkpoint that is not reentrant");
  }
  impl.run_backward(roots, gradients);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] && ctx.needs(static_cast<int>(i))) ctx.set(static_cast<int>(i), inputs[i]->grad);
  }
}

}  // namespace

void HostImpl::rerun(ModuleId module, std::int64_t first_draw, std::span<SymTensor> arguments,
                     std::span<SymTensor> outputs) {
  const std::int64_t draws_before = std::exchange(draws, first_draw);
  const bool grad_before = host.grad_enabled_;
  const Phase phase_before = host.phase_;
  host.grad_enabled_ = true;
  ++host.recompute_depth_;
  host.set_phase(Phase::kRecompute);
  host.decide({.kind = DecisionKind::kRecomputeBegin, .module = module});
  run_checkpointed(module, arguments, outputs);
  host.decide({.kind = DecisionKind::kRecomputeEnd, .module = module});
  draws = draws_before;
  host.set_phase(phase_before);
  --host.recompute_depth_;
  host.grad_enabled_ = grad_before;
}

void HostImpl::call_reentrant(ModuleId m, std::span<SymTensor> inputs,
                              std::span<SymTensor> outputs) {
  bool any = false;
  for (const SymTensor& t : inputs) any = any || (t && t->requires_grad);
  Ref<AutogradNode> node;
  if (any) {
    node = new_node(next_sequence++, reentrant_backward);  // Made before the forward runs.
    AutogradNode* const n = node.get();
    n->payload = m.value;
    n->ints[0] = draws;
    n->scope = host.scope_;
    for (const SymTensor& t : inputs) {
      n->add_edge(t && t->requires_grad ? AutogradEdge{gradient_edge_node(*t), t->output_nr}
                                        : AutogradEdge{});
      n->more_saved.push_back(pack(t));
    }
    // Saved tensors are counted from the inline ones on.
    while (n->inline_saved < kInlineSaved && !n->more_saved.empty()) {
      n->saved_[n->inline_saved++] = std::move(n->more_saved.front());
      n->more_saved.erase(n->more_saved.begin());
    }
  }
  {
    const NoGradGuard no_grad(host);
    ++reentrant_forwards;
    run_checkpointed(m, inputs, outputs);
    --reentrant_forwards;
  }
  if (!node) return;
  node->gradients_in = static_cast<std::uint16_t>(outputs.size());
  node->dtype = outputs[0]->dtype;
  for (const SymTensor& t : outputs)
    node->mixed_dtypes = node->mixed_dtypes || (t && t->dtype != node->dtype);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i] || !is_floating(outputs[i]->dtype)) continue;
    if (outputs[i]->grad_fn || outputs[i]->requires_grad) outputs[i] = host.detach(outputs[i]);
    outputs[i]->requires_grad = true;
    outputs[i]->grad_fn = node;
    outputs[i]->output_nr = static_cast<std::uint16_t>(i);
  }
}

}  // namespace foreshard
