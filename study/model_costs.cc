#include "study/model_costs.h"

#include <set>

#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

bool kept_for_backward(const Buffer& b) {
  return b.category == BufferCategory::kActivation || b.category == BufferCategory::kLogitsAndLoss;
}

/// Activations that are live when the loss begins.
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
  Bytes sum;
  for (const std::uint32_t b : live) sum += p.buffers[b].bytes;
  return sum;
}

}  // namespace

ModelCosts model_costs(const Model& model, std::int64_t micro_batch, std::int64_t sequence) {
  ParallelConfig config;
  config.framework = FrameworkKind::kUnsharded;
  config.micro_batch = micro_batch;
  config.sequence = sequence;
  config.clip = false;
  config.optimizer = OptimizerKind::kNone;
  PlanOptions options;
  options.executable = false;
  const Schedule schedule = plan(model, config, options);
  const RankProgram& p = schedule.programs[0];
  const Segment step = p.steps.back();
  ModelCosts out;
  for (std::uint32_t at = step.begin; at < step.end; ++at) {
    const Instruction& i = p.instructions[at];
    if (i.kind != InstructionKind::kLaunch) continue;
    const Launch& l = p.launches[i.id];
    if (l.flops.value == 0) continue;
    if (l.phase == Phase::kForward) out.forward += l.flops;
    else if (l.phase == Phase::kBackward || l.phase == Phase::kRecompute) out.backward += l.flops;
    else continue;
    out.by_class[std::string(name_of(l.op))] += l.flops;
  }
  out.saved_for_backward = saved_bytes(p, step);
  return out;
}

}  // namespace foreshard
