// Copies templates: a block's forward becomes one node of the graph, whose backward is copied too.

#include <algorithm>

#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/host/block_template.h"
#include "schedules/planner/host/few_tensors.h"
#include "schedules/planner/host/graph_task.h"
#include "schedules/planner/host/host_impl.h"

namespace foreshard {

void BlockTemplates::call(ModuleId m, std::span<SymTensor> inputs, std::span<SymTensor> outputs) {
  if (!classes_known_) find_classes();
  const Block& block = blocks_[m.value];
  if (block.block_class < 0) return impl_.run_block(m, inputs, outputs);
  BlockClass& c = classes_[static_cast<std::size_t>(block.block_class)];
  // Inside another checkpoint or a backward the block's graph belongs to someone else.
  if (!c.usable || inside_ || !impl_.save_scopes.empty() || impl_.host.in_backward() ||
      impl_.autocast)
    return impl_.run_block(m, inputs, outputs);
  const TemplateKey& key = key_of(block, inputs, false);
  for (const auto& t : c.templates) {
    if (t->key != key) continue;
    return m == c.first || m == c.last ? run_source(*t, m, inputs, outputs)
                                       : replay_forward(*t, m, inputs, outputs);
  }
  record_forward(c, m, inputs, outputs);
}

ScopeId BlockTemplates::moved(ScopeId s, ModuleId from, ModuleId to) const {
  const auto c = static_cast<std::size_t>(blocks_[from.value].block_class);
  const std::uint32_t number = s.value - from.value;
  return number < classes_[c].modules ? ScopeId(to.value + number) : s;
}

/// Copies the range's table entries; modules of block `from` become those of block `to`.
void BlockTemplates::append(const TemplateRange& range, ModuleId from, ModuleId to) {
  if (range.instructions.empty()) return;
  RankProgram& p = impl_.host.program_.program();
  const auto c = static_cast<std::size_t>(blocks_[from.value].block_class);
  const std::uint32_t modules = classes_[c].modules;
  const auto copy = [&](const auto& entries, auto& table) {
    const std::size_t at = table.size();
    table.insert(table.end(), entries.begin(), entries.end());
    for (std::size_t i = at; i < table.size(); ++i) {
      const std::uint32_t number = table[i].scope.value - from.value;
      if (number < modules) table[i].scope = ScopeId(to.value + number);
    }
  };
  copy(range.buffers, p.buffers);
  copy(range.launches, p.launches);
  copy(range.marks, p.marks);
  p.copies.insert(p.copies.end(), range.copies.begin(), range.copies.end());
  p.host_work.insert(p.host_work.end(), range.host_work.begin(), range.host_work.end());
}

/// Instructions [begin, end) of a range whose tables were just appended. `bases`: by IdBase; those
/// of buffers are known.
void BlockTemplates::issue(const TemplateRange& range, std::uint32_t begin, std::uint32_t end,
                           std::span<std::uint32_t> bases) {
  if (begin == end) return;
  RankProgram& p = impl_.host.program_.program();
  const auto start = [](const auto& table, const auto& entries) {
    return static_cast<std::uint32_t>(table.size() - entries.size());
  };
  bases[kLaunchBase] = start(p.launches, range.launches);
  bases[kCopyBase] = start(p.copies, range.copies);
  bases[kHostWorkBase] = start(p.host_work, range.host_work);
  bases[kMarkBase] = start(p.marks, range.marks);
  const std::size_t at = p.instructions.size();
  p.instructions.insert(p.instructions.end(), range.instructions.begin() + begin,
                        range.instructions.begin() + end);
  for (std::size_t i = at; i < p.instructions.size(); ++i) {
    Instruction& in = p.instructions[i];
    in.id += bases[in.reserved];
    in.reserved = 0;
  }
}

/// A tensor of the copy. `given`: whose storage it shares, for TemplateTensor::Storage::kGiven.
SymTensor BlockTemplates::make(const TemplateTensor& t, const SymTensor& given,
                               std::span<const std::uint32_t> bases) {
  if (t.storage == TemplateTensor::Storage::kNone) return {};
  Ref<SymStorage> storage;
  if (t.storage == TemplateTensor::Storage::kOwn) {
    const BufferId id(bases[kFirstBuffers + t.buffer.range] + t.buffer.number);
    const Buffer& b = impl_.host.program_.program().buffers[id.value];
    storage = impl_.make_storage(b.bytes.value, b.category, b.unit, b.name);
    storage->buffer = id;
    storage->pool = b.pool;
    storage->space = b.space;
    storage->scope = b.scope;
    ++storage->generation;
  } else {
    storage = given->storage;
  }
  SymTensor base = t.has_base ? impl_.make_tensor(storage, t.shape, t.dtype) : SymTensor();
  SymTensor result = impl_.make_tensor(std::move(storage), t.shape, t.dtype);
  result->stride = t.stride;
  result->offset = t.offset;
  result->base = std::move(base);
  return result;
}

// ------------------------------------------------------------------------------------------------
// forward

void BlockTemplates::replay_forward(ForwardTemplate& t, ModuleId m, std::span<SymTensor> inputs,
                                    std::span<SymTensor> outputs) {
  ++copies_;
  Instance copy;
  copy.forward = &t;
  copy.module = m;
  copy.first_buffers.reserve(t.ranges.size());
  std::vector<std::uint32_t>& bases = bases_;
  bases.resize(kFirstBuffers);
  running_ = &copy;
  copying_ = true;
  for (std::size_t r = 0; r < t.ranges.size(); ++r) {
    const TemplateRange& range = t.ranges[r];
    if (r > 0) run_hook(t.hooks[r - 1], t.recorded, m);
    copy.first_buffers.push_back(
        static_cast<std::uint32_t>(impl_.host.program_.program().buffers.size()));
    bases.push_back(copy.first_buffers.back());
    append(range, t.recorded, m);
    issue(range, 0, static_cast<std::uint32_t>(range.instructions.size()), bases);
  }
  copying_ = false;
  running_ = nullptr;
  const Ref<AutogradNode> node = t.has_graph ? graph_node(t, m, inputs) : Ref<AutogradNode>();
  impl_.next_sequence += t.sequences;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const TemplateTensor& o = t.outputs[i];
    if (o.storage == TemplateTensor::Storage::kGivenObject) {
      outputs[i] = inputs[o.number];
      continue;
    }
    const bool given = o.storage == TemplateTensor::Storage::kGiven;
    outputs[i] = make(o, given ? inputs[o.number] : SymTensor(), bases);
    if (!outputs[i] || !o.requires_grad) continue;
    outputs[i]->requires_grad = true;
    outputs[i]->grad_fn = node;
    outputs[i]->output_nr = o.output_nr;
  }
  if (!node) return;
  for (const ForwardTemplate::Saved& s : t.saved) {
    const SavedTensor held{impl_.host.detach(s.output ? outputs[s.index] : inputs[s.index]), -1,
                           -1};
    if (node->inline_saved < kInlineSaved) {
      node->saved_[node->inline_saved++] = held;
    } else {
      node->more_saved.push_back(held);
    }
  }
  ++waiting_;
  node->block = static_cast<std::int32_t>(instances_.size());
  instances_.push_back(std::move(copy));
}

/// Hooks inside a block look only at whether a tensor takes a gradient
/// (Framework::sees_no_tensors).
const SymTensor& BlockTemplates::stand_in(SeenTensor seen) {
  SymTensor& t = seen == SeenTensor::kPlain ? plain_ : takes_gradient_;
  if (!t) {
    t = impl_.make_tensor({}, {}, DType::kFloat32);
    t->requires_grad = seen == SeenTensor::kTakesGradient;
  }
  return t;
}

void BlockTemplates::run_hook(const InnerHook& hook, ModuleId from, ModuleId to) {
  Host& host = impl_.host;
  FewTensors in(hook.inputs.size()), out(hook.outputs.size());
  const auto fill = [&](const std::vector<SeenTensor>& seen, std::span<SymTensor> tensors) {
    for (std::size_t i = 0; i < seen.size(); ++i)
      if (seen[i] != SeenTensor::kNone) tensors[i] = stand_in(seen[i]);
  };
  fill(hook.inputs, in.all());
  fill(hook.outputs, out.all());
  const ModuleId m(hook.module.value - from.value + to.value);
  const ScopeId before = std::exchange(host.scope_, host.scope_of(m));
  if (hook.kind == InnerHook::Kind::kPreForward) {
    host.framework_->pre_forward(host, m, in.all());
  } else {
    host.framework_->post_forward(host, m, in.all(), out.all());
  }
  host.scope_ = before;
}

bool BlockTemplates::takes_function(std::uint64_t sequence, std::uint32_t payload) {
  if (running_ == nullptr) return false;
  running_->functions.push_back(copying_ ? payload : sequence);
  return copying_;
}

/// The node that stands for the graph of block `m`.
Ref<AutogradNode> BlockTemplates::graph_node(const ForwardTemplate& t, ModuleId m,
                                             std::span<const SymTensor> inputs) {
  Host& host = impl_.host;
  Ref<AutogradNode> n = impl_.new_node(impl_.next_sequence + t.entry, replay_backward);
  n->scope = moved(t.scope, t.recorded, m);
  n->gradients_in = t.gradients_in;
  n->mixed_dtypes = t.mixed_dtypes;
  n->dtype = t.dtype;
  n->runs_without_gradients = true;
  if (t.edges.size() > kInlineEdges) n->more_edges.reserve(t.edges.size() - kInlineEdges);
  const ScopeId before = host.scope_;
  for (const ForwardTemplate::Edge& e : t.edges) {
    const SymTensor& x =
        e.tensor < inputs.size()
            ? inputs[e.tensor]
            : host.parameter(blocks_[m.value].parameters[e.tensor - inputs.size()]);
    host.scope_ = moved(e.scope, t.recorded, m);
    n->add_edge({impl_.gradient_edge_node(*x), x->output_nr});
  }
  host.scope_ = before;
  return n;
}

// ------------------------------------------------------------------------------------------------
// backward

void BlockTemplates::replay_backward(BackwardContext& ctx) {
  ctx.host.impl().block_templates->replay(ctx);
}

/// The template of the backward that begins; BlocksDiffer if none fits.
const BackwardTemplate& BlockTemplates::template_of(BackwardContext& ctx, const Instance& copy) {
  const ForwardTemplate& forward = *copy.forward;
  const TemplateKey& key = key_of(blocks_[copy.module.value], ctx.all_gradients(), true);
  const auto fits = [&](const auto& b) { return b->key == key; };
  const auto found = std::find_if(forward.backwards.begin(), forward.backwards.end(), fits);
  if (found == forward.backwards.end()) throw BlocksDiffer();
  const BackwardTemplate& t = **found;
  if (copy.functions.size() != t.functions) throw BlocksDiffer();
  const HostImpl::GraphTask& task = *impl_.running_task;
  AutogradNode& node = ctx.node;
  for (int i = 0; i < node.edges(); ++i) {
    if (t.exits[static_cast<std::size_t>(i)]) continue;
    const AutogradEdge& e = node.edge(i);
    const bool waits = e.node->slots != UINT32_MAX && task.slots[e.node->slots + e.input];
    if (waits || e.node->stream != node.stream) throw BlocksDiffer();
  }
  return t;
}

void BlockTemplates::replay(BackwardContext& ctx) {
  using Kind = BackwardTemplate::Step::Kind;
  --waiting_;
  AutogradNode& node = ctx.node;
  const Instance& copy = instances_[static_cast<std::size_t>(node.block)];
  const BackwardTemplate& t = template_of(ctx, copy);
  HostImpl::GraphTask& task = *impl_.running_task;
  std::vector<std::uint32_t>& bases = bases_;
  bases.resize(kFirstBuffers);
  bases.insert(bases.end(), copy.first_buffers.begin(), copy.first_buffers.end());
  const std::size_t own_ranges = bases.size();
  const RankProgram& p = impl_.host.program_.program();
  for (const BackwardTemplate::Step& step : t.steps) {
    switch (step.kind) {
      case Kind::kIssue: {
        const TemplateRange& range = t.ranges[step.index];
        if (step.begin == 0 && bases.size() == own_ranges + step.index) {
          bases.push_back(static_cast<std::uint32_t>(p.buffers.size()));
          append(range, t.recorded, copy.module);
        }
        issue(range, step.begin, step.end, bases);
        break;
      }
      case Kind::kLeaf:
        run_leaf(node, static_cast<int>(step.index), make(step.gradient, {}, bases));
        break;
      case Kind::kExit: {
        const AutogradEdge& e = node.edge(static_cast<int>(step.index));
        impl_.accumulate_input(task, node.stream, e.node.get(), e.input,
                               make(step.gradient, {}, bases));
        break;
      }
      case Kind::kReleaseGradient:
        ctx.grad(static_cast<int>(step.index)).reset();
        break;
      case Kind::kReleaseSaved:
        node.saved(static_cast<int>(step.index)).tensor.reset();
        break;
      case Kind::kFunction:
        impl_.host.scope_ = moved(step.scope, t.recorded, copy.module);
        impl_.host.framework_->on_function_backward(
            impl_.host, static_cast<std::uint32_t>(copy.functions[step.index]));
        break;
    }
  }
  for (std::size_t i = 0; i < t.results.size(); ++i) {
    const TemplateTensor& r = t.results[i];
    const bool given = r.storage == TemplateTensor::Storage::kGiven;
    ctx.set(static_cast<int>(i),
            make(r, given ? ctx.grad(static_cast<int>(r.number)) : SymTensor(), bases));
  }
  // What was not dropped above has another holder.
  const std::size_t end = p.instructions.size();
  for (SymTensor& g : ctx.all_gradients()) g.reset();
  impl_.release_saved(node);
  if (p.instructions.size() != end) throw BlocksDiffer();
}

/// AccumulateGrad behind an edge, at the place where the engine ran the template's.
void BlockTemplates::run_leaf(AutogradNode& node, int edge, SymTensor&& gradient) {
  HostImpl::GraphTask& task = *impl_.running_task;
  const Ref<AutogradNode> leaf = node.edge(edge).node;
  const std::uint16_t input = node.edge(edge).input;
  if (leaf->pending != 1) throw BlocksDiffer();
  impl_.accumulate_input(task, node.stream, leaf.get(), input, std::move(gradient));
  leaf->pending = 0;
  impl_.evaluate(task, leaf.get());
  node.edge(edge) = {};
}

}  // namespace foreshard
