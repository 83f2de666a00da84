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

/// A buffer is claimed once, so that the order of ids is that of claiming.
LastStep walk(const RankProgram& p) {
  const Segment step = p.steps.back();
  LastStep result;
  std::vector<bool> claimed(p.buffers.size());
  for (std::uint32_t i = step.begin; i < step.end; ++i) {
    const Instruction& in = p.instructions[i];
    if (in.kind == InstructionKind::kAlloc) {
      claimed[in.id] = true;
      result.left.push_back(in.id);
    } else if (in.kind == InstructionKind::kFree) {
      if (!claimed[in.id]) result.returned.push_back(in.id);
      claimed[in.id] = false;
    }
  }
  std::erase_if(result.left, [&](std::uint32_t b) { return !claimed[b]; });
  std::sort(result.returned.begin(), result.returned.end());
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
