// nn.Module.__call__ and forward programs: statements run one after the other; values are Python
// locals, dropped when rebound or when the forward returns; values whose name starts with '%' are
// temporaries, dropped after their last use.

#include <algorithm>

#include "core/error.h"
#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/host/block_template.h"
#include "schedules/planner/host/few_tensors.h"
#include "schedules/planner/host/host_impl.h"
#include "schedules/planner/recipes/recipes.h"

namespace foreshard {

const CompiledModule& HostImpl::compile(ModuleId m) {
  CompiledModule& c = compiled[m.value];
  if (c.ready) return c;
  const Module& def = host.model().at(m);
  c.slots = static_cast<std::int32_t>(def.value_names.size());
  std::vector<std::int32_t> last(static_cast<std::size_t>(c.slots), -1);
  for (std::size_t i = 0; i < def.program.size(); ++i) {
    for (const ValueSlot v : def.program[i].inputs)
      last[static_cast<std::size_t>(v)] = static_cast<std::int32_t>(i);
    for (const ValueSlot v : def.program[i].outputs) {
      last[static_cast<std::size_t>(v)] =
          std::max(last[static_cast<std::size_t>(v)], static_cast<std::int32_t>(i));
    }
  }
  for (const ValueSlot v : def.outputs) last[static_cast<std::size_t>(v)] = INT32_MAX;
  for (std::size_t i = 0; i < def.program.size(); ++i) {
    const Statement& s = def.program[i];
    c.most_inputs = std::max(c.most_inputs, s.inputs.size());
    c.most_outputs = std::max(c.most_outputs, s.outputs.size());
    const std::size_t begin = c.release.size();
    const auto dies = [&](ValueSlot v) {
      return last[static_cast<std::size_t>(v)] == static_cast<std::int32_t>(i) &&
             def.value_names[static_cast<std::size_t>(v)].starts_with('%') &&
             std::find(c.release.begin() + static_cast<std::ptrdiff_t>(begin), c.release.end(),
                       v) == c.release.end();
    };
    // A tuple's items are dropped last first.
    if (s.function == Function::kCat) {
      for (auto it = s.inputs.rbegin(); it != s.inputs.rend(); ++it)
        if (dies(*it)) c.release.push_back(*it);
    } else {
      for (const ValueSlot v : s.inputs)
        if (dies(v)) c.release.push_back(v);
    }
    c.inputs_end.push_back(static_cast<std::uint32_t>(c.release.size()));
    for (const ValueSlot v : s.outputs)
      if (dies(v)) c.release.push_back(v);
    c.release_end.push_back(static_cast<std::uint32_t>(c.release.size()));
  }
  c.ready = true;
  return c;
}

namespace {

/// Deepest stack of module values; a model beyond it is a bug of the importer (a module that calls
/// itself).
constexpr std::size_t kValueStack = 1 << 15;

/// Values of one running forward; dropped in the order of their slots, as CPython clears a frame.
class ValueFrame {
 public:
  ValueFrame(HostImpl& impl, std::int32_t slots) : impl_(impl), base_(impl.value_top) {
    const std::size_t top = base_ + static_cast<std::size_t>(slots);
    if (top > kValueStack) throw InternalError("module calls are nested too deeply");
    if (top > impl.value_stack.size()) impl.value_stack.resize(2 * top);
    impl.value_top = top;
  }
  ~ValueFrame() {
    for (std::size_t i = base_; i < impl_.value_top; ++i) impl_.value_stack[i].reset();
    impl_.value_top = base_;
  }
  ValueFrame(const ValueFrame&) = delete;
  ValueFrame& operator=(const ValueFrame&) = delete;
  SymTensor& operator[](ValueSlot v) {
    return impl_.value_stack[base_ + static_cast<std::size_t>(v)];
  }

 private:
  HostImpl& impl_;
  std::size_t base_;
};

}  // namespace

void HostImpl::run_program(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs) {
  const CompiledModule& c = compile(m);
  const Module& def = host.model().at(m);
  ValueFrame values(*this, c.slots);
  for (std::size_t i = 0; i < def.inputs.size(); ++i) values[def.inputs[i]] = inputs[i];
  FewTensors in(c.most_inputs), out(c.most_outputs);
  std::uint32_t released = 0;
  for (std::size_t i = 0; i < def.program.size(); ++i) {
    const Statement& s = def.program[i];
    const std::span<SymTensor> in_span = in.all().first(s.inputs.size()),
                               out_span = out.all().first(s.outputs.size());
    for (std::size_t k = 0; k < s.inputs.size(); ++k) in_span[k] = values[s.inputs[k]];
    const bool grad_before = host.grad_enabled_;
    if (s.no_grad) host.grad_enabled_ = false;
    const bool report =
        s.function == Function::kAddParameter && traced_parameters[m.value] && host.has_sink();
    if (report) {
      host.decide({.kind = DecisionKind::kModuleForwardBegin,
                   .flag = host.recomputing(),
                   .module = m,
                   .parameter = s.parameters[0]});
    }
    if (s.function == Function::kCall) {
      host.call(s.child, in_span, out_span);
    } else {
      run_function(host, def, s, in_span, out_span);
    }
    if (report) report_backward({m, s.parameters[0]}, out_span);
    host.grad_enabled_ = grad_before;
    for (SymTensor& t : in_span) t.reset();
    // Temporaries that were arguments go when the call returns, before its results are stored over
    // old values.
    for (; released < c.inputs_end[i]; ++released) values[c.release[released]].reset();
    for (std::size_t k = 0; k < s.outputs.size(); ++k)
      values[s.outputs[k]] = std::move(out_span[k]);
    for (; released < c.release_end[i]; ++released) values[c.release[released]].reset();
  }
  for (std::size_t i = 0; i < def.outputs.size(); ++i) outputs[i] = values[def.outputs[i]];
}

namespace {

/// Reports of a module's own backward (kModuleBackwardBegin / End), as identity functions in the
/// graph.
void report_begin(BackwardContext& ctx) {
  HostImpl::ReportedCall& call = ctx.host.impl().reported_calls[ctx.node.payload];
  if (!call.backward_seen) {
    call.backward_seen = true;
    ctx.host.decide({.kind = DecisionKind::kModuleBackwardBegin,
                     .module = call.module,
                     .parameter = call.parameter});
  }
  if (ctx.needs(0)) ctx.set(0, ctx.grad(0));
}

void report_end(BackwardContext& ctx) {
  ctx.host.decide({.kind = DecisionKind::kModuleBackwardEnd, .module = ModuleId(ctx.node.payload)});
  for (int i = 0; i < ctx.gradients(); ++i)
    if (ctx.needs(i)) ctx.set(i, ctx.grad(i));
}

}  // namespace

void HostImpl::report_backward(const ReportedCall& call, std::span<SymTensor> outputs) {
  reported_calls.push_back(call);
  const auto index = static_cast<std::uint32_t>(reported_calls.size() - 1);
  for (SymTensor& t : outputs) {
    if (t && t->requires_grad && host.grad_enabled_) identity({&t, 1}, report_begin, index);
  }
}

void HostImpl::run_module(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs) {
  const ScopeId scope_before = host.scope_;
  host.scope_ = host.scope_of(m);
  const bool marks = host.options().executable;
  Mark mark;
  mark.kind = MarkKind::kModule;
  mark.phase = host.phase_;
  mark.scope = host.scope_;
  if (marks) host.program_.mark(mark);
  const bool report = host.has_sink() && traced[m.value];
  FewTensors marked(report ? inputs.size() : 0);
  std::span<SymTensor> in = inputs;
  if (report) {
    host.decide(
        {.kind = DecisionKind::kModuleForwardBegin, .flag = host.recomputing(), .module = m});
    in = marked.all();
    std::copy(inputs.begin(), inputs.end(), in.begin());
    std::vector<SymTensor> wanted;
    for (const SymTensor& t : in)
      if (t && t->requires_grad && host.grad_enabled_) wanted.push_back(t);
    if (!wanted.empty()) {
      identity(wanted, report_end, m.value);
      std::size_t k = 0;
      for (SymTensor& t : in)
        if (t && t->requires_grad) t = wanted[k++];
    }
  }
  struct Finish {
    HostImpl& impl;
    Mark mark;
    bool marks;
    ScopeId before;
    ~Finish() {
      mark.begin = false;
      if (marks) impl.host.program_.mark(mark);
      impl.set_scope(before);
    }
  };
  const Finish finish{*this, mark, marks, scope_before};
  run_program(m, in, outputs);
  if (report) {
    report_backward({m}, outputs);
    host.decide({.kind = DecisionKind::kModuleForwardEnd, .flag = host.recomputing(), .module = m});
  }
}

void Host::call(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs) {
  if (config_.checkpoint_outside_units && impl_->checkpointed[m.value]) {
    impl_->call_checkpointed(m, inputs, outputs);
  } else {
    call_hooked(m, inputs, outputs);
  }
}

void Host::call_hooked(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs) {
  const bool watched = watched_[m.value] != 0;
  const ScopeId before = scope_;
  BlockTemplates* const templates = impl_->block_templates.get();
  if (watched) {
    scope_ = scope_of(m);
    if (templates != nullptr) templates->before_hook(InnerHook::Kind::kPreForward, m, inputs, {});
    framework_->pre_forward(*this, m, inputs);
    if (templates != nullptr) templates->after_hook();
    scope_ = before;
  }
  try {
    if (templates != nullptr) {
      templates->call(m, inputs, outputs);
    } else {
      impl_->run_block(m, inputs, outputs);
    }
  } catch (const StopRecomputation&) {
    if (watched) framework_->forward_aborted(*this, m);
    throw;
  }
  if (watched) {
    scope_ = scope_of(m);
    if (templates != nullptr)
      templates->before_hook(InnerHook::Kind::kPostForward, m, inputs, outputs);
    framework_->post_forward(*this, m, inputs, outputs);
    if (templates != nullptr) templates->after_hook();
    scope_ = before;
  }
}

void HostImpl::run_block(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs) {
  if (!host.config_.checkpoint_outside_units && checkpointed[m.value]) {
    call_checkpointed(m, inputs, outputs);
  } else {
    run_module(m, inputs, outputs);
  }
}

void Host::set_checkpointed(ModuleId m) { impl_->checkpointed[m.value] = 1; }

void Host::trace_module(ModuleId m) { impl_->traced[m.value] = 1; }

void Host::trace_own_parameters(ModuleId m) { impl_->traced_parameters[m.value] = 1; }

}  // namespace foreshard
