#pragma once

#include <cstddef>
#include <cstdint>

#include "schedules/schedule.h"

namespace foreshard {

/// Sizes of a program's tables.
struct ProgramPosition {
  std::size_t instructions, buffers, launches, copies, host_work, marks, collectives;
  std::uint32_t events;
  explicit ProgramPosition(const RankProgram& p)
      : instructions(p.instructions.size()),
        buffers(p.buffers.size()),
        launches(p.launches.size()),
        copies(p.copies.size()),
        host_work(p.host_work.size()),
        marks(p.marks.size()),
        collectives(p.collectives.size()),
        events(p.events) {}
};

}  // namespace foreshard
