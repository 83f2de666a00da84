// Makes templates of forwards: runs a block for real and describes what it wrote.

#include <algorithm>

#include "schedules/planner/host/block_recorder.h"
#include "schedules/planner/host/host_impl.h"

namespace foreshard {

BlockTemplates::BlockTemplates(HostImpl& impl) : impl_(impl) {}
BlockTemplates::~BlockTemplates() = default;

// ------------------------------------------------------------------------------------------------
// ranges

TemplateBuffer RangeCutter::find(BufferId buffer) const {
  for (std::size_t r = claimed_.size(); r-- > 0;) {
    const std::uint32_t number = buffer.value - claimed_[r].first;
    if (number < claimed_[r].alive.size()) return {static_cast<std::uint16_t>(r), number};
  }
  return {UINT16_MAX, 0};
}

void RangeCutter::set_alive(std::uint32_t buffer, bool alive) {
  const TemplateBuffer b = find(BufferId(buffer));
  if (b.range != UINT16_MAX) claimed_[b.range].alive[b.number] = alive;
}

void RangeCutter::count_from_range(Instruction& of_buffer) {
  const auto [range, number] = find(BufferId(of_buffer.id));
  if (of_buffer.kind != InstructionKind::kRecordStream)
    set_alive(of_buffer.id, of_buffer.kind == InstructionKind::kAlloc);
  of_buffer.reserved = static_cast<std::uint16_t>(kFirstBuffers + range);
  of_buffer.id = number;
}

bool RangeCutter::count_from_begin(Instruction& other) const {
  const auto count = [&other](std::uint16_t base, std::size_t begin) {
    other.reserved = base;
    other.id -= static_cast<std::uint32_t>(begin);
    return true;
  };
  switch (other.kind) {
    case InstructionKind::kLaunch:
      return count(kLaunchBase, begin_.launches);
    case InstructionKind::kCopy:
      return count(kCopyBase, begin_.copies);
    case InstructionKind::kHost:
      return count(kHostWorkBase, begin_.host_work);
    case InstructionKind::kMark:
      return count(kMarkBase, begin_.marks);
    case InstructionKind::kSyncStream:
    case InstructionKind::kSyncDevice:
      return true;
    default:
      return false;
  }
}

std::vector<TemplateBuffer> RangeCutter::alive() const {
  std::vector<TemplateBuffer> result;
  for (std::size_t r = 0; r < claimed_.size(); ++r) {
    for (std::uint32_t i = 0; i < claimed_[r].alive.size(); ++i)
      if (claimed_[r].alive[i]) result.push_back({static_cast<std::uint16_t>(r), i});
  }
  return result;
}

std::vector<std::uint32_t> RangeCutter::first_buffers() const {
  std::vector<std::uint32_t> result;
  for (const Claimed& c : claimed_) result.push_back(c.first);
  return result;
}

void ForwardRecorder::cut() {
  const auto none = [](const Instruction&, std::size_t) { return false; };
  ranges_.emplace_back();
  usable_ = usable_ && cutter_.cut(ranges_.back(), none);
}

/// As far as lengths tell.
bool ForwardRecorder::equal(const ForwardTemplate& t) const {
  return usable_ && std::equal(ranges_.begin(), ranges_.end(), t.ranges.begin(), t.ranges.end(),
                               [](const TemplateRange& a, const TemplateRange& b) {
                                 return a.instructions.size() == b.instructions.size() &&
                                        a.buffers.size() == b.buffers.size();
                               });
}

// ------------------------------------------------------------------------------------------------
// forms

namespace {

/// Null where the leaf has no AccumulateGrad yet.
const AutogradNode* gradient_node(const SymTensorImpl& t) {
  return t.grad_fn ? t.grad_fn.get() : t.grad_accumulator;
}

TensorForm form_of(const SymTensor& t, StreamIndex stream, bool count_refs) {
  TensorForm f;
  if (!t) return f;
  f.defined = true;
  f.live = t->storage->buffer.valid() || t->numel == 0;
  f.requires_grad = t->requires_grad;
  f.leaf = t->is_leaf();
  f.dtype = t->dtype;
  f.grad_dtype = t->grad_dtype;
  f.space = t->storage->space;
  const AutogradNode* const n = gradient_node(*t);
  f.mixed_node = n != nullptr && n->mixed_dtypes;
  f.node_dtype = n != nullptr ? n->dtype : t->dtype;
  f.node_stream = n != nullptr ? n->stream : stream;
  f.shape = t->shape;
  for (std::size_t d = 0; d < t->shape.rank; ++d) f.stride[d] = t->stride[d];
  if (count_refs) {
    f.refs = t->refs;
    f.storage_refs = t->storage->refs;
  }
  return f;
}

}  // namespace

const TemplateKey& BlockTemplates::key_of(const Block& block, std::span<const SymTensor> given,
                                          bool count_refs) {
  const Host& host = impl_.host;
  TemplateKey& key = key_;
  key.tensors.clear();
  key.phase = host.phase_;
  key.stream = host.stream_;
  key.grad_enabled = host.grad_enabled_;
  key.tensors.reserve(given.size() + block.parameters.size() + block.buffers.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    TensorForm f = form_of(given[i], key.stream, count_refs);
    f.same_object = f.same_storage = static_cast<std::uint16_t>(i);
    for (std::size_t k = i; f.defined && k-- > 0;) {
      if (!given[k]) continue;
      if (given[k] == given[i]) f.same_object = static_cast<std::uint16_t>(k);
      if (given[k]->storage == given[i]->storage) f.same_storage = static_cast<std::uint16_t>(k);
    }
    key.tensors.push_back(f);
  }
  for (const ParameterId p : block.parameters) {
    key.tensors.push_back(form_of(host.parameters_[p.value], key.stream, false));
    key.tensors.back().live |= block.hooks_inside;  // They gather it before its use.
  }
  for (const auto& [module, index] : block.buffers) {
    const auto& made = host.buffers_[module.value];
    const auto i = static_cast<std::size_t>(index);
    key.tensors.push_back(i < made.size() ? form_of(made[i], key.stream, false) : TensorForm{});
  }
  return key;
}

// ------------------------------------------------------------------------------------------------
// forward

namespace {

/// The nodes that a block made, and what lies behind them.
struct BlockGraph {
  AutogradNode* entry = nullptr;
  std::vector<AutogradNode*> nodes;
  std::vector<AutogradEdge*> exits;
};

BlockGraph graph_of(HostImpl& impl, std::span<const SymTensor> outputs, std::uint64_t first) {
  BlockGraph g;
  for (const SymTensor& t : outputs) {
    if (t && t->grad_fn && t->grad_fn->sequence >= first) g.entry = t->grad_fn.get();
  }
  if (g.entry == nullptr) return g;
  const std::uint32_t mark = ++impl.backward_number;
  std::vector<AutogradNode*> stack{g.entry};
  g.entry->visit = mark;
  while (!stack.empty()) {
    AutogradNode* const n = stack.back();
    stack.pop_back();
    g.nodes.push_back(n);
    for (int i = 0; i < n->edges(); ++i) {
      AutogradNode* const next = n->edge(i).node.get();
      if (next == nullptr) continue;
      if (!next->backward || next->sequence < first) {
        g.exits.push_back(&n->edge(i));
      } else if (next->visit != mark) {
        next->visit = mark;
        stack.push_back(next);
      }
    }
  }
  return g;
}

/// Storages that nodes and checkpoints of a block hold.
std::vector<const SymStorage*> held_by(HostImpl& impl, const BlockGraph& g) {
  std::vector<const SymStorage*> held;
  const auto hold = [&](const SymTensor& t) {
    if (t) held.push_back(t->storage.get());
  };
  for (AutogradNode* const n : g.nodes) {
    for (int i = 0; i < n->saved_count(); ++i) {
      const SavedTensor& s = n->saved(i);
      hold(s.tensor);
      if (s.frame < 0) continue;
      const CheckpointFrame& f = impl.frames[static_cast<std::size_t>(s.frame)];
      for (const SavedTensor& a : f.arguments) hold(a.tensor);
      for (const auto& kept : f.kept)
        for (const SymTensor& t : kept) hold(t);
    }
  }
  return held;
}

/// Describes outputs, graph and what the graph holds. False: the block has no template.
class ForwardDescription {
 public:
  ForwardDescription(HostImpl& impl, ForwardTemplate& t, std::span<const SymTensor> inputs,
                     std::span<const SymTensor> tensors, std::span<const SymTensor> outputs,
                     const RangeCutter& cutter, std::uint64_t first)
      : impl_(impl),
        t_(t),
        inputs_(inputs),
        tensors_(tensors),
        outputs_(outputs),
        cutter_(cutter),
        first_(first) {}

  bool describe(BlockGraph& g) {
    g = graph_of(impl_, outputs_, first_);
    for (const SymTensor& o : outputs_) {
      t_.outputs.emplace_back();
      if (!describe_output(o, g, t_.outputs.back())) return false;
    }
    if (!t_.key.grad_enabled || g.entry == nullptr) return t_.alive.empty();
    return describe_graph(g);
  }

 private:
  bool describe_output(const SymTensor& o, const BlockGraph& g, TemplateTensor& t) const {
    if (!o) return true;
    for (std::uint32_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i]) continue;
      if (inputs_[i] == o) {
        t.storage = TemplateTensor::Storage::kGivenObject;
        t.number = i;
        return true;
      }
      if (inputs_[i]->storage == o->storage) {
        t.storage = TemplateTensor::Storage::kGiven;
        t.number = i;
      }
    }
    if (t.storage == TemplateTensor::Storage::kNone) {
      t.buffer = cutter_.find(o->storage->buffer);
      if (t.buffer.range == UINT16_MAX || !o->storage->buffer.valid()) return false;
      t.storage = TemplateTensor::Storage::kOwn;
      if (std::erase(t_.alive, t.buffer) == 0) return false;  // Two views of one buffer.
    }
    t.dtype = o->dtype;
    t.shape = o->shape;
    t.stride = o->stride;
    t.offset = o->offset;
    t.requires_grad = o->requires_grad;
    t.output_nr = o->output_nr;
    return !o->requires_grad || (g.entry != nullptr && o->grad_fn.get() == g.entry);
  }

  bool describe_graph(const BlockGraph& g) {
    t_.has_graph = true;
    t_.gradients_in = g.entry->gradients_in;
    t_.mixed_dtypes = g.entry->mixed_dtypes;
    t_.dtype = g.entry->dtype;
    t_.scope = g.entry->scope;
    t_.entry = g.entry->sequence - first_;
    t_.nodes = static_cast<std::uint32_t>(g.nodes.size());
    for (const AutogradEdge* e : g.exits) {
      const auto behind = [&](const SymTensor& x) {
        return x && gradient_node(*x) == e->node.get() && x->output_nr == e->input;
      };
      const auto at = std::find_if(tensors_.begin(), tensors_.end(), behind);
      if (at == tensors_.end()) return false;
      ForwardTemplate::Edge edge{static_cast<std::uint32_t>(at - tensors_.begin()),
                                 e->node->backward == nullptr, e->node->scope};
      if (edge.leaf && std::find(t_.edges.begin(), t_.edges.end(), edge) != t_.edges.end())
        return false;  // A leaf that the block uses twice.
      t_.edges.push_back(edge);
    }
    const auto held = held_by(impl_, g);
    const auto note = [&](std::span<const SymTensor> list, bool output) {
      for (std::uint32_t i = 0; i < list.size(); ++i) {
        if (!list[i] || std::find(held.begin(), held.end(), list[i]->storage.get()) == held.end())
          continue;
        t_.saved.push_back({output, i});
      }
    };
    note(inputs_, false);
    note(outputs_, true);
    return true;
  }

  HostImpl& impl_;
  ForwardTemplate& t_;
  std::span<const SymTensor> inputs_, tensors_, outputs_;
  const RangeCutter& cutter_;
  std::uint64_t first_;
};

}  // namespace

void BlockTemplates::record_hook(InnerHook::Kind kind, ModuleId m,
                                 std::span<const SymTensor> inputs,
                                 std::span<const SymTensor> outputs) {
  const auto seen = [](std::span<const SymTensor> tensors) {
    std::vector<SeenTensor> list;
    for (const SymTensor& t : tensors)
      list.push_back(!t                 ? SeenTensor::kNone
                     : t->requires_grad ? SeenTensor::kTakesGradient
                                        : SeenTensor::kPlain);
    return list;
  };
  forward_recorder_->before_hook({kind, m, seen(inputs), seen(outputs)});
}

void BlockTemplates::record_after_hook() { forward_recorder_->after_hook(); }

void BlockTemplates::run_inside(ForwardRecorder& recorder, ModuleId m, std::span<SymTensor> inputs,
                                std::span<SymTensor> outputs) {
  inside_ = true;
  forward_recorder_ = &recorder;
  impl_.run_block(m, inputs, outputs);
  forward_recorder_ = nullptr;
  inside_ = false;
  recorder.cut();
}

void BlockTemplates::record_forward(BlockClass& c, ModuleId m, std::span<SymTensor> inputs,
                                    std::span<SymTensor> outputs) {
  const Block& block = blocks_[m.value];
  auto t = std::make_unique<ForwardTemplate>();
  t->key = key_;
  t->recorded = m;
  std::vector<SymTensor> tensors(inputs.begin(), inputs.end());
  for (const ParameterId p : block.parameters) tensors.push_back(impl_.host.parameter(p));
  const std::uint64_t first = impl_.next_sequence;
  ForwardRecorder recorder(impl_.host.program_.program());
  run_inside(recorder, m, inputs, outputs);
  t->sequences = impl_.next_sequence - first;
  BlockGraph g;
  const std::span<const SymTensor> given(tensors.data(), inputs.size());
  bool usable = recorder.usable();
  if (usable) {
    t->ranges = std::move(recorder.ranges());
    t->hooks = std::move(recorder.hooks());
    t->alive = recorder.cutter().alive();
    usable = ForwardDescription(impl_, *t, given, tensors, outputs, recorder.cutter(), first)
                 .describe(g);
  }
  if (!usable) {
    c.usable = false;
    return;
  }
  c.templates.push_back(std::move(t));
}

/// A real run whose backward may become a template.
void BlockTemplates::run_source(ForwardTemplate& t, ModuleId m, std::span<SymTensor> inputs,
                                std::span<SymTensor> outputs) {
  Instance source;
  source.forward = &t;
  source.module = m;
  source.first_sequence = impl_.next_sequence;
  ForwardRecorder recorder(impl_.host.program_.program());
  running_ = &source;
  run_inside(recorder, m, inputs, outputs);
  running_ = nullptr;
  if (!recorder.equal(t)) throw BlocksDiffer();
  source.first_buffers = recorder.cutter().first_buffers();
  if (!t.has_graph) return;
  const BlockGraph g = graph_of(impl_, outputs, source.first_sequence);
  if (g.entry == nullptr || g.nodes.size() != t.nodes || g.exits.size() != t.edges.size())
    throw BlocksDiffer();
  for (const AutogradEdge* e : g.exits) {
    source.targets.push_back(e->node.get());
    source.inputs.push_back(e->input);
  }
  for (const ForwardTemplate::Saved& s : t.saved)
    source.saved_buffers.push_back(
        (s.output ? outputs[s.index] : inputs[s.index])->storage->buffer.value);
  g.entry->block = static_cast<std::int32_t>(instances_.size());
  instances_.push_back(std::move(source));
}

}  // namespace foreshard
