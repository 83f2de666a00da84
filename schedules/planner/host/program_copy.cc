#include "schedules/planner/host/program_copy.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

namespace foreshard {
namespace {

/// Ids of one kind of instruction: those from `least` on belong to what is copied.
struct Move {
  std::uint32_t least = 0, by = 0;
};
using Moves = std::array<Move, static_cast<std::size_t>(InstructionKind::kMark) + 1>;

/// From tables that began at `from` to such that begin at `now`.
Moves moves_between(const ProgramPosition& from, const ProgramPosition& now) {
  using K = InstructionKind;
  Moves moves;
  const auto set = [&](std::initializer_list<K> kinds, std::size_t before, std::size_t after) {
    for (const K k : kinds)
      moves[static_cast<std::size_t>(k)] = {static_cast<std::uint32_t>(before),
                                            static_cast<std::uint32_t>(after - before)};
  };
  set({K::kAlloc, K::kFree, K::kRecordStream}, from.buffers, now.buffers);
  set({K::kLaunch}, from.launches, now.launches);
  set({K::kCollective}, from.collectives, now.collectives);
  set({K::kCopy}, from.copies, now.copies);
  set({K::kRecordEvent, K::kWaitEvent, K::kSyncEvent}, from.events, now.events);
  set({K::kHost}, from.host_work, now.host_work);
  set({K::kMark}, from.marks, now.marks);
  return moves;
}

/// Number of buffers given back; nullopt if an instruction needs something from before.
std::optional<std::size_t> copy_instructions(std::vector<Instruction>& all, std::size_t from,
                                             std::size_t to, const Moves& moves) {
  const std::size_t at = all.size();
  all.resize(at + to - from);
  const Instruction* const source = all.data() + from;
  Instruction* const target = all.data() + at;
  std::size_t freed = 0;
  for (std::size_t i = 0; i < to - from; ++i) {
    Instruction in = source[i];
    const Move move = moves[static_cast<std::size_t>(in.kind)];
    if (in.id >= move.least) {
      in.id += move.by;
      freed += in.kind == InstructionKind::kFree ? 1 : 0;
    } else if (in.kind != InstructionKind::kRecordStream) {
      return std::nullopt;
    }
    target[i] = in;
  }
  return freed;
}

template <typename Row>
void copy_rows(std::vector<Row>& table, std::size_t from, std::size_t to) {
  const std::size_t at = table.size();
  table.resize(at + to - from);
  std::copy(table.data() + from, table.data() + to, table.data() + at);
}

}  // namespace

bool write_again(RankProgram& p, const ProgramPosition& from, const ProgramPosition& to,
                 std::size_t left) {
  const ProgramPosition now(p);
  const auto freed = copy_instructions(p.instructions, from.instructions, to.instructions,
                                       moves_between(from, now));
  if (!freed || *freed + left != to.buffers - from.buffers) {
    p.instructions.resize(now.instructions);
    return false;
  }
  copy_rows(p.buffers, from.buffers, to.buffers);
  copy_rows(p.launches, from.launches, to.launches);
  copy_rows(p.collectives, from.collectives, to.collectives);
  copy_rows(p.copies, from.copies, to.copies);
  copy_rows(p.host_work, from.host_work, to.host_work);
  copy_rows(p.marks, from.marks, to.marks);
  p.events += to.events - from.events;
  return true;
}

}  // namespace foreshard
