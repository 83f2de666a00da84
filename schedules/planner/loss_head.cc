#include "schedules/planner/loss_head.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/integers.h"

namespace foreshard {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw InputError(Issue{"", "loss", "chunked and fused losses need " + why, "float32 or plain"});
}

/// Index of the root's statement that calls the head.
std::size_t head_call(const Model& model) {
  if (model.roles.tail.empty() || model.arguments.empty() || !model.arguments[0].tokens)
    refuse("a language model");
  const Module& root = model.root();
  const ModuleId head = model.roles.tail.back();
  for (std::size_t i = 0; i < root.program.size(); ++i) {
    const Statement& s = root.program[i];
    if (s.function != Function::kCall || s.child != head) continue;
    if (i + 1 != root.program.size() || root.outputs.size() != 1 || s.outputs != root.outputs) {
      refuse("a head whose result is the model's output as it stands");
    }
    return i;
  }
  refuse("a head that the model itself calls last");
}

ValueSlot add_value(Module& m, const std::string& name) {
  m.value_names.push_back(name);
  return static_cast<ValueSlot>(m.value_names.size() - 1);
}

/// How many chunks torch.chunk makes of a sequence.
std::int64_t chunks_of(std::int64_t sequence, std::int64_t wanted) {
  const std::int64_t part = (sequence + wanted - 1) / std::max<std::int64_t>(wanted, 1);
  return part > 0 ? ceil_div(sequence, part) : 1;
}

void make_chunked(Module& head, Module& root, std::size_t call, std::int64_t chunks) {
  const Statement linear = head.program[0];
  Statement chunk;
  chunk.function = Function::kChunk;
  chunk.inputs = linear.inputs;
  chunk.ints = {1, chunks};
  for (std::int64_t i = 0; i < chunks; ++i)
    chunk.outputs.push_back(add_value(head, "%chunk" + std::to_string(i)));
  head.program = {chunk};
  head.outputs.clear();
  root.outputs.clear();
  root.program[call].outputs.clear();
  for (std::int64_t i = 0; i < chunks; ++i) {
    Statement s = linear;
    s.inputs = {chunk.outputs[static_cast<std::size_t>(i)]};
    s.outputs = {add_value(head, "logits" + std::to_string(i))};
    head.outputs.push_back(s.outputs[0]);
    head.program.push_back(s);
    root.program[call].outputs.push_back(add_value(root, "logits" + std::to_string(i)));
  }
  root.outputs = root.program[call].outputs;
}

void make_fused(Module& head, Module& root, std::size_t call) {
  Statement& s = head.program[0];
  s.function = Function::kFusedLinearCrossEntropy;
  const ValueSlot targets = add_value(head, "targets");
  s.inputs.push_back(targets);
  head.inputs.push_back(targets);
  const ValueSlot given = add_value(root, "targets");
  root.inputs.push_back(given);
  root.program[call].inputs.push_back(given);
}

}  // namespace

bool changes_head(LossKind loss) { return loss == LossKind::kChunked || loss == LossKind::kFused; }

Model with_loss_head(const Model& model, const ParallelConfig& config) {
  Model changed = model;
  const std::size_t call = head_call(model);
  Module& head = changed.at(changed.roles.tail.back());
  const bool linear = head.program.size() == 1 && head.program[0].function == Function::kLinear &&
                      head.program[0].parameters.size() == 1 && head.inputs.size() == 1;
  if (!linear) refuse("a linear head without bias");
  if (config.loss == LossKind::kFused) {
    make_fused(head, changed.modules[0], call);
  } else {
    make_chunked(head, changed.modules[0], call, chunks_of(config.sequence, config.loss_chunks));
  }
  return changed;
}

}  // namespace foreshard
