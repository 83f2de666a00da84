#include "schedules/requested_bytes.h"

#include <algorithm>

namespace foreshard {

Bytes most_requested(const RankProgram& program, std::int32_t steps) {
  std::int64_t live = 0, most = 0;
  const auto run = [&](const Segment& segment) {
    for (std::uint32_t i = segment.begin; i < segment.end; ++i) {
      const Instruction& in = program.instructions[i];
      if (in.kind != InstructionKind::kAlloc && in.kind != InstructionKind::kFree) continue;
      const Buffer& b = program.buffers[in.id];
      if (b.space != MemorySpace::kDevice) continue;
      live += in.kind == InstructionKind::kAlloc ? b.bytes.value : -b.bytes.value;
      most = std::max(most, live);
    }
  };
  run(program.init);
  const auto written = static_cast<std::int32_t>(program.steps.size());
  for (std::int32_t s = 0; s < std::min(steps, written); ++s)
    run(program.steps[static_cast<std::size_t>(s)]);
  return Bytes(most);
}

}  // namespace foreshard
