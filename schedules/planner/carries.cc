#include "schedules/planner/carries.h"

#include <algorithm>
#include <cstring>
#include <span>
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

/// Adds the numbers from `begin` to `end` whose flag is `value`.
void add_flagged(const std::vector<std::uint8_t>& flags, std::uint32_t begin, std::uint32_t end,
                 std::uint8_t value, std::vector<std::uint32_t>& numbers) {
  const std::uint8_t* const first = flags.data();
  const std::uint8_t* at = first + begin;
  while (at != first + end) {
    at = static_cast<const std::uint8_t*>(
        std::memchr(at, value, static_cast<std::size_t>(first + end - at)));
    if (at == nullptr) return;
    numbers.push_back(static_cast<std::uint32_t>(at++ - first));
  }
}

/// A buffer is claimed once, so that the order of ids is that of claiming: those of the last step
/// are the last ones.
LastStep walk(const RankProgram& p) {
  const Segment range = p.steps.back();
  const std::span step = std::span(p.instructions).subspan(range.begin, range.end - range.begin);
  const auto buffers = static_cast<std::uint32_t>(p.buffers.size());
  const auto claim = std::find_if(step.begin(), step.end(), [](const Instruction& in) {
    return in.kind == InstructionKind::kAlloc;
  });
  const std::uint32_t first = claim == step.end() ? buffers : claim->id;
  std::vector<std::uint8_t> returned(buffers);
  for (const Instruction& in : step)
    if (in.kind == InstructionKind::kFree) returned[in.id] = 1;
  LastStep result;
  add_flagged(returned, 0, first, 1, result.returned);
  add_flagged(returned, first, buffers, 0, result.left);
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
