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

LastStep walk(const RankProgram& p) {
  const Segment step = p.steps.back();
  std::vector<bool> claimed_in_step(p.buffers.size()), live(p.buffers.size());
  std::vector<std::uint32_t> order, returned(p.buffers.size(), 0);
  for (std::uint32_t i = 0; i < step.end; ++i) {
    const Instruction& in = p.instructions[i];
    const bool inside = i >= step.begin;
    if (in.kind == InstructionKind::kAlloc) {
      order.push_back(in.id);
      live[in.id] = true;
      claimed_in_step[in.id] = inside;
    } else if (in.kind == InstructionKind::kFree) {
      live[in.id] = false;
      returned[in.id] = inside && !claimed_in_step[in.id] ? 1 : 0;
    }
  }
  LastStep result;
  for (const std::uint32_t b : order) {
    if (claimed_in_step[b] && live[b]) result.left.push_back(b);
    if (!claimed_in_step[b] && returned[b] != 0) result.returned.push_back(b);
  }
  return result;
}

}  // namespace

void find_carries(RankProgram& program) {
  if (program.steps.size() < 2) return;
  LastStep step = walk(program);
  const auto paired = [&](std::uint32_t b) {
    return std::any_of(program.carries.begin(), program.carries.end(),
                       [&](const Carry& c) { return c.before.value == b || c.now.value == b; });
  };
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
