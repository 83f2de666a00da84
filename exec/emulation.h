#pragma once

#include "exec/run.h"
#include "schedules/schedule.h"
#include "schedules/trace.h"

namespace foreshard {

/// The durations of a predicted trace of the schedule, for RunOptions::emulate: for each program
/// those of its first rank in the trace, for each instruction those of its last occurrence (the
/// steady state). Waiting is not a duration: an instruction that only waits takes no host time.
/// Throws InputError if the trace is not one of this schedule.
EmulatedTimes emulated_times(const Schedule& schedule, const Trace& predicted);

}  // namespace foreshard
