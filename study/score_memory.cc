#include "study/score_memory.h"

#include <string>

namespace foreshard {
namespace {

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

/// Trainers that accumulate gradients in fp32 beside 16-bit weights (nanotron) reset the
/// allocator's peak after the backward pass and report what it is at the end of the optimizer's
/// step; such rows do not change with the micro-batch.
bool reports_optimizer_peak(const MeasuredRun& run) {
  return contains(run.precision, "fp32 grad accumulation") &&
         contains(run.mem_kind, "max_memory_allocated");
}

/// Live in that step, in bytes for each parameter: weights 2, gradients 2, fp32 gradients 4,
/// masters 4, moments 8. ZeRO-1 shards masters and moments; new weights are gathered through a flat
/// copy of all (2) and of the shard (2).
double optimizer_peak(const Job& job) {
  const auto parameters = static_cast<double>(job.model->parameter_count().value);
  if (job.config.framework == FrameworkKind::kDdp) return parameters * (2 + 2 + 4 + 4 + 8);
  return parameters * (2 + 2 + 4 + 2 + (4 + 8 + 2) / static_cast<double>(job.config.shard));
}

}  // namespace

double memory_like(const MeasuredRun& run, const Job& job, const MemoryResult& memory) {
  const std::string& kind = run.mem_kind;
  const bool known =
      job.config.framework == FrameworkKind::kDdp || job.config.framework == FrameworkKind::kZero1;
  if (reports_optimizer_peak(run) && known) return optimizer_peak(job);
  if (contains(kind, "allocated") || contains(kind, "active"))
    return static_cast<double>(memory.allocated_peak.value);
  if (contains(kind, "device") || contains(kind, "process"))
    return static_cast<double>(memory.device_peak.value);
  return static_cast<double>(memory.reserved_peak.value);
}

}  // namespace foreshard
