#include "report/memory_curve.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace foreshard {
namespace {

using Totals = std::array<std::int64_t, kBufferCategoryCount>;

void apply(const RankProgram& p, const Instruction& i, Totals& totals) {
  if (i.kind != InstructionKind::kAlloc && i.kind != InstructionKind::kFree) return;
  const Buffer& b = p.buffers[i.id];
  if (b.space != MemorySpace::kDevice) return;
  totals[static_cast<std::size_t>(b.category)] +=
      (i.kind == InstructionKind::kAlloc ? 1 : -1) * b.bytes.value;
}

/// The phase and module in which an instruction stands.
std::string place_of(const RankProgram& p, std::uint32_t instruction) {
  std::string phase = "the step", module;
  std::vector<std::string> modules;
  for (std::uint32_t at = 0; at < instruction && at < p.instructions.size(); ++at) {
    const Instruction& i = p.instructions[at];
    if (i.kind != InstructionKind::kMark) continue;
    const Mark& m = p.marks[i.id];
    if (m.kind == MarkKind::kPhase && m.begin) phase = name_of(m.phase);
    if (m.kind != MarkKind::kModule) continue;
    if (m.begin)
      modules.push_back(m.scope.valid() ? p.scopes[m.scope.value] : "");
    else if (!modules.empty())
      modules.pop_back();
  }
  for (const std::string& name : modules)
    if (!name.empty()) module = name;
  return module.empty() ? phase : phase + " of " + module;
}

/// Keeps the categories that ever hold memory, largest at the peak first.
void pack(MemoryCurve& curve) {
  std::vector<std::size_t> kept;
  for (std::size_t c = 0; c < static_cast<std::size_t>(kBufferCategoryCount); ++c)
    if (std::any_of(curve.points.begin(), curve.points.end(),
                    [c](const auto& p) { return p.bytes[c] > 0; }))
      kept.push_back(c);
  const std::vector<std::int64_t> at_peak = curve.points[curve.peak].bytes;
  std::stable_sort(kept.begin(), kept.end(),
                   [&](std::size_t a, std::size_t b) { return at_peak[a] > at_peak[b]; });
  for (const std::size_t c : kept)
    curve.categories.emplace_back(name_of(static_cast<BufferCategory>(c)));
  for (auto& point : curve.points) {
    std::vector<std::int64_t> packed;
    for (const std::size_t c : kept) packed.push_back(std::max<std::int64_t>(0, point.bytes[c]));
    point.bytes = std::move(packed);
  }
}

}  // namespace

MemoryCurve memory_curve(const Schedule& schedule, const Trace& trace, std::int32_t rank,
                         std::int32_t step) {
  const RankProgram& p = schedule.program_for(rank);
  MemoryCurve out;
  if (p.steps.empty()) return out;
  const std::size_t written =
      std::min<std::size_t>(static_cast<std::size_t>(std::max(step, 0)), p.steps.size() - 1);
  Totals totals{};
  std::uint32_t at = 0;
  for (; at < p.steps[written].begin; ++at) apply(p, p.instructions[at], totals);
  std::uint32_t peak_instruction = at;
  for (const MemorySample& m : trace.memory) {
    if (m.rank != rank || m.step != step || m.instruction >= p.instructions.size()) continue;
    for (; at <= m.instruction; ++at) apply(p, p.instructions[at], totals);
    out.points.push_back({m.at, m.allocated, m.reserved, {totals.begin(), totals.end()}});
    if (m.allocated > out.points[out.peak].allocated) {
      out.peak = out.points.size() - 1;
      peak_instruction = m.instruction;
    }
  }
  if (out.points.empty()) return out;
  out.peak_at = place_of(p, peak_instruction);
  pack(out);
  return out;
}

}  // namespace foreshard
