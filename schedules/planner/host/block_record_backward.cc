// Makes templates of backwards: follows the engine through the nodes of a block that ran for real.

#include <algorithm>

#include "schedules/planner/host/block_recorder.h"
#include "schedules/planner/host/graph_task.h"
#include "schedules/planner/host/host_impl.h"

namespace foreshard {

void BlockTemplates::enter_backward(AutogradNode& node, std::span<const SymTensor> gradients) {
  Instance& source = instances_[static_cast<std::size_t>(node.block)];
  if (recorder_ || source.targets.empty()) return;
  const TemplateKey& key = key_of(blocks_[source.module.value], gradients, true);
  for (const auto& b : source.forward->backwards)
    if (b->key == key) return;
  recorder_ = std::make_unique<BackwardRecorder>(impl_, source, key, gradients);
}

void BlockTemplates::record_before(AutogradNode& n) {
  recorder_->before(n);
  if (recorder_->done()) recorder_.reset();
}

void BlockTemplates::record_after(const AutogradNode& n) { recorder_->after(n); }

void BlockTemplates::record_edge(const AutogradNode& n, const AutogradNode& next, int input,
                                 const SymTensor& g) {
  recorder_->before_edge(n, next, input, g);
}

void BlockTemplates::record_after_edge(const AutogradNode& n, const AutogradNode& next) {
  recorder_->after_edge(n, next);
}

void BlockTemplates::record_function(const AutogradNode& n) { recorder_->before_function(n); }

void BlockTemplates::record_after_function(const AutogradNode& n) { recorder_->after_function(n); }

void BlockTemplates::end_backward() {
  if (recorder_) recorder_->finish();
  recorder_.reset();
}

BackwardRecorder::BackwardRecorder(HostImpl& impl, BlockTemplates::Instance& source,
                                   const TemplateKey& key, std::span<const SymTensor> gradients)
    : impl_(impl),
      source_(source),
      made_(std::make_unique<BackwardTemplate>()),
      cutter_(impl.host.program().program()),
      left_(source.forward->nodes - 1) {
  made_->key = key;
  made_->recorded = source.module;
  made_->functions = source.functions.size();
  made_->results.resize(source.targets.size());
  made_->exits.resize(source.targets.size());
  const ForwardTemplate& t = *source.forward;
  for (std::size_t r = 0; r < t.ranges.size(); ++r)
    cutter_.adopt(source.first_buffers[r], t.ranges[r].buffers.size());
  for (const TemplateBuffer b : t.alive) cutter_.own(b);
  for (const SymTensor& g : gradients) {
    gradient_buffers_.push_back(g ? g->storage->buffer : BufferId());
    if (!g || !g->storage->buffer.valid()) give_up();
  }
  for (std::size_t i = 0; i < source.targets.size(); ++i) {
    const AutogradNode& n = *source.targets[i];
    const bool other_stream = n.stream != made_->key.stream;
    made_->exits[i] = other_stream && n.backward;
    const SymTensor* const there = slot(n, source.inputs[i]);
    if (!made_->exits[i] && (other_stream || (there != nullptr && *there))) give_up();
  }
  cutter_.begin();
}

const SymTensor* BackwardRecorder::slot(const AutogradNode& n, std::uint16_t input) const {
  if (n.slots == UINT32_MAX) return nullptr;
  return &impl_.running_task->slots[n.slots + input];
}

bool BackwardRecorder::inside(const AutogradNode& n) const {
  return n.backward && n.sequence >= source_.first_sequence &&
         n.sequence < source_.first_sequence + source_.forward->sequences;
}

/// Ends the range that runs now.
void BackwardRecorder::pause() {
  using Kind = BackwardTemplate::Step::Kind;
  const auto number = static_cast<std::uint32_t>(made_->ranges.size());
  made_->ranges.emplace_back();
  TemplateRange& range = made_->ranges.back();
  std::uint32_t from = 0;
  const auto issue = [&](std::size_t to) {
    made_->steps.push_back({Kind::kIssue, number, from, static_cast<std::uint32_t>(to), {}, {}});
    from = static_cast<std::uint32_t>(to);
  };
  const auto foreign = [&](const Instruction& in, std::size_t at) {
    if (in.kind != InstructionKind::kFree) return false;
    const auto drop = [&](Kind kind, std::size_t index) {
      issue(at);
      made_->steps.push_back({kind, static_cast<std::uint32_t>(index), 0, 0, {}, {}});
      return true;
    };
    for (std::size_t i = 0; i < gradient_buffers_.size(); ++i)
      if (gradient_buffers_[i].value == in.id) return drop(Kind::kReleaseGradient, i);
    for (std::size_t i = 0; i < source_.saved_buffers.size(); ++i)
      if (source_.saved_buffers[i] == in.id) return drop(Kind::kReleaseSaved, i);
    return false;
  };
  if (!cutter_.cut(range, foreign)) return give_up();
  issue(range.instructions.size());
}

/// A gradient that goes to a node outside; nobody inside may hold it any more.
bool BackwardRecorder::describe(const SymTensor& g, TemplateTensor& t) {
  if (!g) return true;
  const SymStorage& s = *g->storage;
  if (g->refs != 1 || (g->base && (g->base->refs != 1 || g->base->storage != g->storage)) ||
      s.refs != (g->base ? 2u : 1u) || !s.buffer.valid())
    return false;
  const auto given = std::find(gradient_buffers_.begin(), gradient_buffers_.end(), s.buffer);
  if (given != gradient_buffers_.end()) {
    t.storage = TemplateTensor::Storage::kGiven;
    t.number = static_cast<std::uint32_t>(given - gradient_buffers_.begin());
  } else {
    t.buffer = cutter_.find(s.buffer);
    if (t.buffer.range == UINT16_MAX) return false;
    t.storage = TemplateTensor::Storage::kOwn;
    cutter_.escape(s.buffer);
  }
  t.dtype = g->dtype;
  t.has_base = static_cast<bool>(g->base);
  t.shape = g->shape;
  t.stride = g->stride;
  t.offset = g->offset;
  return true;
}

void BackwardRecorder::before(AutogradNode& n) {
  if (done_) return;
  if (n.backward) {
    if (inside(n)) {
      if (left_-- == 0) give_up();
    } else {
      finish();
    }
    return;
  }
  const auto at = std::find(source_.targets.begin(), source_.targets.end(), &n);
  if (at == source_.targets.end() || n.gradients_in != 1) return give_up();
  pause();
  if (done_) return;
  BackwardTemplate::Step step;
  step.kind = BackwardTemplate::Step::Kind::kLeaf;
  step.index = static_cast<std::uint32_t>(at - source_.targets.begin());
  const SymTensor* const gradient = slot(n, 0);
  if (gradient == nullptr || !describe(*gradient, step.gradient) ||
      step.gradient.storage == TemplateTensor::Storage::kGiven)
    return give_up();
  made_->steps.push_back(step);
  ++leaves_;
}

void BackwardRecorder::after(const AutogradNode& n) {
  if (!done_ && !n.backward) cutter_.begin();
}

void BackwardRecorder::before_edge(const AutogradNode& n, const AutogradNode& next, int input,
                                   const SymTensor& g) {
  if (!exits(n, next)) return;
  pause();
  if (done_) return;
  BackwardTemplate::Step step;
  step.kind = BackwardTemplate::Step::Kind::kExit;
  for (; step.index < source_.targets.size(); ++step.index) {
    if (source_.targets[step.index] == &next && source_.inputs[step.index] == input) break;
  }
  if (step.index == source_.targets.size() || !describe(g, step.gradient) ||
      step.gradient.storage == TemplateTensor::Storage::kGiven)
    return give_up();
  made_->steps.push_back(step);
}

void BackwardRecorder::after_edge(const AutogradNode& n, const AutogradNode& next) {
  if (exits(n, next)) cutter_.begin();
}

void BackwardRecorder::before_function(const AutogradNode& n) {
  if (done_ || !inside(n)) return;
  const auto& applied = source_.functions;
  const auto at = std::find(applied.begin(), applied.end(), n.sequence);
  if (at == applied.end()) return give_up();
  pause();
  if (done_) return;
  BackwardTemplate::Step step;
  step.kind = BackwardTemplate::Step::Kind::kFunction;
  step.index = static_cast<std::uint32_t>(at - applied.begin());
  step.scope = n.scope;
  made_->steps.push_back(step);
}

void BackwardRecorder::finish() {
  if (done_) return;
  pause();
  if (done_) return;
  const ForwardTemplate& t = *source_.forward;
  std::uint32_t leaves = 0;
  for (std::size_t i = 0; i < t.edges.size(); ++i) {
    if (t.edges[i].leaf) ++leaves;
    if (t.edges[i].leaf || made_->exits[i]) continue;
    // The first edge to an input carries what all of them added up to.
    const auto same = [&](const ForwardTemplate::Edge& e) {
      return !e.leaf && e.tensor == t.edges[i].tensor;
    };
    if (std::find_if(t.edges.begin(), t.edges.end(), same) !=
        t.edges.begin() + static_cast<std::ptrdiff_t>(i))
      continue;
    const SymTensor* const gradient = slot(*source_.targets[i], source_.inputs[i]);
    if (gradient == nullptr || !describe(*gradient, made_->results[i])) return give_up();
  }
  done_ = true;
  if (left_ != 0 || leaves != leaves_ || !cutter_.alive().empty()) return give_up();
  source_.forward->backwards.push_back(std::move(made_));
}

}  // namespace foreshard
