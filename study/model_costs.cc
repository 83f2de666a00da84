#include "study/model_costs.h"

#include <iterator>
#include <set>

#include "models/ops/op_registry.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

bool kept_for_backward(const Buffer& b) {
  // Rotary tables and indices are made without gradient and saved all the same.
  return b.category == BufferCategory::kActivation || b.category == BufferCategory::kLogitsAndLoss ||
         b.category == BufferCategory::kForwardTemporary;
}

/// Attention in full: the planner halves causal work, the counting rule of ModelCosts does not.
Flops counted(const Launch& l) {
  const bool attention = row_of(l.op).op_class == OpClass::kAttention;
  return attention && l.dims[5] != 0 ? l.flops * 2 : l.flops;
}

/// Activations that are live when the loss begins, without the model's output (made last), which is kept for the loss.
Bytes saved_bytes(const RankProgram& p, const Segment& step) {
  std::set<std::uint32_t> live;
  for (std::uint32_t at = step.begin; at < step.end; ++at) {
    const Instruction& i = p.instructions[at];
    if (i.kind == InstructionKind::kAlloc && kept_for_backward(p.buffers[i.id])) live.insert(i.id);
    if (i.kind == InstructionKind::kFree) live.erase(i.id);
    if (i.kind != InstructionKind::kMark) continue;
    const Mark& m = p.marks[i.id];
    if (m.kind == MarkKind::kPhase && m.begin && (m.phase == Phase::kLoss || m.phase == Phase::kBackward)) break;
  }
  if (!live.empty()) live.erase(std::prev(live.end()));
  Bytes sum;
  for (const std::uint32_t b : live) sum += p.buffers[b].bytes;
  return sum;
}

/// Token ids are kept by embeddings, pixels by the first convolution.
Bytes argument_bytes(const Model& model, std::int64_t micro_batch, std::int64_t sequence) {
  Bytes sum;
  for (const ModelArgument& a : model.arguments) {
    std::int64_t n = a.shape.empty() ? micro_batch * sequence : 1;
    for (const std::int64_t d : a.shape) n *= d < 0 ? micro_batch : d;
    sum += Bytes(n * size_of(a.dtype));
  }
  return sum;
}

}  // namespace

ModelCosts model_costs(const Model& model, std::int64_t micro_batch, std::int64_t sequence) {
  ParallelConfig config;
  config.framework = FrameworkKind::kUnsharded;
  config.micro_batch = micro_batch;
  config.sequence = sequence;
  config.clip = false;
  config.model_dtype = DType::kBFloat16;
  Model in_16_bit = model;                 // Parameters and floating inputs as a model is trained and its file states.
  for (ParameterDef& parameter : in_16_bit.parameters) parameter.dtype = config.model_dtype;
  for (ModelArgument& argument : in_16_bit.arguments) {
    if (!argument.tokens) argument.dtype = config.model_dtype;
  }
  config.optimizer = OptimizerKind::kNone;
  PlanOptions options;
  options.executable = false;
  const Schedule schedule = plan(in_16_bit, config, options);
  const RankProgram& p = schedule.programs[0];
  const Segment step = p.steps.back();
  ModelCosts out;
  for (std::uint32_t at = step.begin; at < step.end; ++at) {
    const Instruction& i = p.instructions[at];
    if (i.kind != InstructionKind::kLaunch) continue;
    const Launch& l = p.launches[i.id];
    if (l.flops.value == 0) continue;
    if (l.phase == Phase::kForward) out.forward += counted(l);
    else if (l.phase == Phase::kBackward || l.phase == Phase::kRecompute) out.backward += counted(l);
    else continue;
    out.by_class[std::string(name_of(l.op))] += counted(l);
  }
  out.saved_for_backward = saved_bytes(p, step) + argument_bytes(in_16_bit, micro_batch, sequence);
  return out;
}

}  // namespace foreshard
