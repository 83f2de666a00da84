#include "study/score_memory.h"

#include <algorithm>
#include <string>

#include "core/text.h"

namespace foreshard {
namespace {

/// Trainers that accumulate gradients in fp32 beside 16-bit weights (nanotron) reset the
/// allocator's peak after the backward pass and report what it is at the end of the optimizer's
/// step; such rows do not change with the micro-batch.
bool reports_optimizer_peak(const MeasuredRun& run) {
  return contains(run.precision, "fp32 grad accumulation") &&
         contains(run.mem_kind, "max_memory_allocated");
}

}  // namespace

Bytes live_peak(const Schedule& schedule, Phase phase) {
  const RankProgram& p = schedule.program_for(0);
  Phase now = Phase::kOther;
  Bytes live, peak;
  for (const Instruction& in : p.instructions) {
    if (in.kind == InstructionKind::kLaunch) now = p.launches[in.id].phase;
    if (in.kind == InstructionKind::kCollective) now = p.collectives[in.id].phase;
    if (in.kind == InstructionKind::kAlloc || in.kind == InstructionKind::kFree) {
      const Buffer& b = p.buffers[in.id];
      if (b.space != MemorySpace::kDevice) continue;
      live += in.kind == InstructionKind::kAlloc ? b.bytes : Bytes(-b.bytes.value);
    }
    if (now == phase) peak = std::max(peak, live);
  }
  return peak;
}

double memory_like(const MeasuredRun& run, const Schedule& schedule, const MemoryResult& memory) {
  const std::string& kind = run.mem_kind;
  if (reports_optimizer_peak(run))
    return static_cast<double>(live_peak(schedule, Phase::kOptimizer).value);
  if (contains(kind, "allocated") || contains(kind, "active"))
    return static_cast<double>(memory.allocated_peak.value);
  if (contains(kind, "device") || contains(kind, "process"))
    return static_cast<double>(memory.device_peak.value);
  return static_cast<double>(memory.reserved_peak.value);
}

}  // namespace foreshard
