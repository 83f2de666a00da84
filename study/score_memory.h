#pragma once

// Which of the predicted memory figures a measured row's source reports.

#include "sim/result.h"
#include "study/job.h"
#include "study/runs_table.h"

namespace foreshard {

/// Bytes to compare with the row's memory column.
double memory_like(const MeasuredRun& run, const Job& job, const MemoryResult& memory);

}  // namespace foreshard
