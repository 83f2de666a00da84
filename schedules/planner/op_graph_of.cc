#include "schedules/planner/op_graph_of.h"

#include <map>
#include <optional>
#include <span>

#include "models/module_tree.h"
#include "schedules/planner/sample_plan.h"
#include "schedules/schedule.h"

namespace foreshard {
namespace {

std::optional<OpPass> pass_of(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return OpPass::kForward;
    case Phase::kLoss:
      return OpPass::kLoss;
    case Phase::kBackward:
      return OpPass::kBackward;
    default:
      return std::nullopt;
  }
}

class Builder {
 public:
  explicit Builder(const RankProgram& p) : p_(p) {}

  void copy(const Copy& c) {
    if (c.input < 0 || !c.destination.valid()) return;
    OpNode n;
    n.op = "input";
    n.pass = OpPass::kInput;
    n.written = c.bytes;
    describe(n, c.destination);
    n.module = p_.inputs[static_cast<std::size_t>(c.input)].name;
    wrote(graph_.add_node(std::move(n)), c.destination);
  }

  void launch(const Launch& l) {
    const auto pass = pass_of(l.phase);
    if (!pass || l.op == OpKind::kObserve) return;
    const auto operands = std::span(p_.operands).subspan(l.first_operand, l.inputs + l.outputs);
    OpNode n;
    n.op = name_of(l.op);
    n.pass = *pass;
    n.module = l.scope.valid() ? p_.scopes[l.scope.value] : std::string();
    n.flops = counted_flops(l);
    n.read = l.read;
    n.written = l.written;
    if (l.outputs > 0) describe(n, operands[l.inputs]);
    const std::uint32_t id = graph_.add_node(std::move(n));
    std::map<std::uint32_t, std::uint32_t> sources;  // Storage -> node; each once.
    for (const TensorId t : operands) {
      const auto made = t.valid() ? writer_.find(storage(t)) : writer_.end();
      if (made != writer_.end()) sources[made->first] = made->second;
    }
    for (const auto& [buffer, from] : sources)
      graph_.add_edge({from, id, buffer, p_.buffers[buffer].bytes});
    for (const TensorId t : operands.subspan(l.inputs)) {
      if (t.valid()) wrote(id, t);
    }
  }

  OpGraph take() { return std::move(graph_); }

 private:
  std::uint32_t storage(TensorId t) const { return p_.tensors[t.value].buffer.value; }
  void wrote(std::uint32_t node, TensorId t) { writer_[storage(t)] = node; }
  void describe(OpNode& n, TensorId t) const {
    if (!t.valid()) return;
    const Tensor& tensor = p_.tensors[t.value];
    n.dtype = tensor.dtype;
    n.shape.assign(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
  }

  const RankProgram& p_;
  OpGraph graph_;
  std::map<std::uint32_t, std::uint32_t> writer_;  ///< Storage -> the node that wrote it last.
};

}  // namespace

OpGraph op_graph_of(const Model& model, std::int64_t micro_batch, std::int64_t sequence) {
  const Schedule schedule = sample_plan(model, micro_batch, sequence);
  const RankProgram& p = schedule.programs[0];
  const Segment step = p.steps.back();
  Builder builder(p);
  for (std::uint32_t at = step.begin; at < step.end; ++at) {
    const Instruction& i = p.instructions[at];
    if (i.kind == InstructionKind::kCopy) builder.copy(p.copies[i.id]);
    if (i.kind == InstructionKind::kLaunch) builder.launch(p.launches[i.id]);
  }
  return builder.take();
}

}  // namespace foreshard
