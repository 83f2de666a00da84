#include "schedules/planner/carries.h"

#include <algorithm>
#include <vector>

namespace foreshard {
namespace {

bool alike(const Buffer& a, const Buffer& b) {
  return a.bytes == b.bytes && a.category == b.category && a.unit == b.unit && a.pool == b.pool &&
         a.space == b.space;
}

struct LastStep {
  std::vector<std::uint32_t> returned;  ///< Claimed before it, in order of claiming.
  std::vector<std::uint32_t> left;      ///< Claimed in it and live at its end.
};

/// A buffer is claimed once, so that the order of ids is that of claiming: those of the last step
/// are the last ones.
LastStep walk(const RankProgram& p) {
  const Segment step = p.steps.back();
  LastStep result;
  const auto buffers = static_cast<std::uint32_t>(p.buffers.size());
  std::uint32_t first = buffers;
  std::vector<std::uint8_t> returned(buffers);
  for (std::uint32_t i = step.begin; i < step.end; ++i) {
    const Instruction& in = p.instructions[i];
    if (in.kind == InstructionKind::kFree) {
      returned[in.id] = 1;
    } else if (in.kind == InstructionKind::kAlloc && first == buffers) {
      first = in.id;
    }
  }
  for (std::uint32_t b = 0; b < first; ++b)
    if (returned[b] != 0) result.returned.push_back(b);
  for (std::uint32_t b = first; b < buffers; ++b)
    if (returned[b] == 0) result.left.push_back(b);
  return result;
}

}  // namespace

void find_carries(RankProgram& program) {
  if (program.steps.size() < 2) return;
  LastStep step = walk(program);
  std::vector<bool> known(program.buffers.size());
  for (const Carry& c : program.carries) known[c.before.value] = known[c.now.value] = true;
  const auto paired = [&](std::uint32_t b) { return static_cast<bool>(known[b]); };
  std::erase_if(step.returned, paired);
  std::erase_if(step.left, paired);
  std::vector<bool> taken(step.returned.size());
  for (const std::uint32_t now : step.left) {
    for (std::size_t i = 0; i < step.returned.size(); ++i) {
      if (taken[i] || !alike(program.buffers[step.returned[i]], program.buffers[now])) continue;
      taken[i] = true;
      program.carries.push_back({BufferId(step.returned[i]), BufferId(now)});
      break;
    }
  }
}

}  // namespace foreshard
