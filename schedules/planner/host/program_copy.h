#pragma once

#include <cstddef>

#include "schedules/planner/host/program_position.h"
#include "schedules/schedule.h"

namespace foreshard {

/// Writes again, at the end of the program, what stands between two positions, with the numbers of
/// its buffers, events and table entries moved on; for programs without tensors and operands.
/// `left`: buffers that it leaves claimed. False, and nothing is written: it waits for an event or
/// gives back a buffer from before, or leaves another number of buffers.
bool write_again(RankProgram& program, const ProgramPosition& from, const ProgramPosition& to,
                 std::size_t left);

}  // namespace foreshard
