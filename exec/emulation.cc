#include "exec/emulation.h"

#include <vector>

#include <fmt/format.h>

#include "core/error.h"

namespace foreshard {
namespace {

bool only_waits(const RankProgram& program, const Instruction& i) {
  switch (i.kind) {
    case InstructionKind::kSyncEvent:
    case InstructionKind::kSyncStream:
    case InstructionKind::kSyncDevice:
      return true;
    case InstructionKind::kCopy:
      return program.copies.at(i.id).blocks_host;
    default:
      return false;
  }
}

}  // namespace

EmulatedTimes emulated_times(const Schedule& schedule, const Trace& predicted) {
  const auto wrong = [](const std::string& what) -> InputError {
    return InputError(Issue{"trace", "", what, "a trace predicted for this schedule"});
  };
  EmulatedTimes times;
  for (const RankProgram& p : schedule.programs) {
    times.host.emplace_back(p.instructions.size());
    times.device.emplace_back(p.instructions.size());
  }
  std::vector<std::int32_t> source(schedule.programs.size(),
                                   -1);  // rank whose spans a program takes
  for (const Span& s : predicted.spans) {
    if (s.rank < 0 || s.rank >= schedule.world)
      throw wrong(fmt::format("it has a rank {}", s.rank));
    const std::size_t ranks = schedule.program_of_rank.size();
    const std::uint32_t p =
        schedule.program_of_rank[ranks == 1 ? 0 : static_cast<std::size_t>(s.rank)];
    if (source[p] < 0) source[p] = s.rank;
    if (source[p] != s.rank) continue;
    const RankProgram& program = schedule.programs[p];
    if (s.instruction >= program.instructions.size())
      throw wrong(fmt::format("it has an instruction {}", s.instruction));
    if (s.lane == Lane::kHost && only_waits(program, program.instructions[s.instruction])) continue;
    auto& list = s.lane == Lane::kHost ? times.host[p] : times.device[p];
    list[s.instruction] = s.end - s.start;  // spans come by step: the last one stays
  }
  for (std::size_t p = 0; p < source.size(); ++p) {
    if (source[p] < 0) throw wrong(fmt::format("no rank of program {} is in it", p));
  }
  return times;
}

}  // namespace foreshard
