#include "schedules/planner/model_costs.h"

#include <fmt/format.h>

#include <iterator>
#include <set>
#include <span>

#include "core/error.h"
#include "schedules/planner/sample_plan.h"
#include "schedules/schedule.h"

namespace foreshard {
namespace {

bool kept_for_backward(const Buffer& b) {
  // Rotary tables and indices are made without gradient and saved all the same.
  return b.category == BufferCategory::kActivation ||
         b.category == BufferCategory::kLogitsAndLoss ||
         b.category == BufferCategory::kForwardTemporary;
}

/// Activations that are live when the loss begins, without the model's output (made last), which is
/// kept for the loss.
Bytes saved_bytes(const RankProgram& p, const Segment& step) {
  std::set<std::uint32_t> live;
  for (std::uint32_t at = step.begin; at < step.end; ++at) {
    const Instruction& i = p.instructions[at];
    if (i.kind == InstructionKind::kAlloc && kept_for_backward(p.buffers[i.id])) live.insert(i.id);
    if (i.kind == InstructionKind::kFree) live.erase(i.id);
    if (i.kind != InstructionKind::kMark) continue;
    const Mark& m = p.marks[i.id];
    if (m.kind == MarkKind::kPhase && m.begin &&
        (m.phase == Phase::kLoss || m.phase == Phase::kBackward))
      break;
  }
  if (!live.empty()) live.erase(std::prev(live.end()));
  Bytes sum;
  for (const std::uint32_t b : live) sum += p.buffers[b].bytes;
  return sum;
}

/// Arguments that backward reads: token ids by embeddings, pixels by the first convolution.
Bytes argument_bytes(const RankProgram& p, const Segment& step, std::size_t arguments) {
  std::set<std::uint32_t> given, read;
  for (std::uint32_t at = step.begin; at < step.end; ++at) {
    const Instruction& i = p.instructions[at];
    if (i.kind == InstructionKind::kCopy) {
      const Copy& c = p.copies[i.id];
      if (c.input >= 0 && static_cast<std::size_t>(c.input) < arguments)
        given.insert(p.tensors[c.destination.value].buffer.value);
    } else if (i.kind == InstructionKind::kLaunch && p.launches[i.id].phase == Phase::kBackward) {
      const Launch& l = p.launches[i.id];
      for (const TensorId t : std::span(p.operands).subspan(l.first_operand, l.inputs)) {
        if (t.valid() && given.count(p.tensors[t.value].buffer.value))
          read.insert(p.tensors[t.value].buffer.value);
      }
    }
  }
  Bytes sum;
  for (const std::uint32_t b : read) sum += p.buffers[b].bytes;
  return sum;
}

}  // namespace

ModelCosts model_costs(const Model& model, std::int64_t micro_batch, std::int64_t sequence) {
  const Schedule schedule = sample_plan(model, micro_batch, sequence);
  const RankProgram& p = schedule.programs[0];
  const Segment step = p.steps.back();
  ModelCosts out;
  constexpr std::int64_t kMost = std::int64_t{1} << 61;  // One launch has less (Host::launch).
  for (std::uint32_t at = step.begin; at < step.end; ++at) {
    const Instruction& i = p.instructions[at];
    if (i.kind != InstructionKind::kLaunch) continue;
    const Launch& l = p.launches[i.id];
    if (l.flops.value == 0) continue;
    if (out.forward.value > kMost || out.backward.value > kMost)
      throw InputError(Issue{"--seq", "",
                             fmt::format("{} tokens x micro-batch {} take more FLOPs than can be "
                                         "counted",
                                         sequence, micro_batch),
                             "a shorter sequence or a smaller --micro-batch"});
    if (l.phase == Phase::kForward)
      out.forward += counted_flops(l), out.forward_causal += l.flops;
    else if (l.phase == Phase::kBackward || l.phase == Phase::kRecompute)
      out.backward += counted_flops(l), out.backward_causal += l.flops;
    else
      continue;
    out.by_class[std::string(name_of(l.op))] += counted_flops(l);
  }
  out.saved_for_backward = saved_bytes(p, step) + argument_bytes(p, step, model.arguments.size());
  return out;
}

}  // namespace foreshard
