#pragma once

// Which of the predicted memory figures a measured row's source reports.

#include "schedules/schedule.h"
#include "sim/result.h"
#include "study/runs_table.h"

namespace foreshard {

/// Bytes to compare with the row's memory column.
double memory_like(const MeasuredRun& run, const Schedule& schedule, const MemoryResult& memory);

/// Most bytes that rank 0 holds on the device while work of `phase` is issued, as requested (before
/// the allocator rounds).
Bytes live_peak(const Schedule& schedule, Phase phase);

}  // namespace foreshard
