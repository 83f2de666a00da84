#pragma once

#include "cli/command.h"
#include "study/job.h"

namespace foreshard::cli {

/// `tune --all-groupings`: the exact front of contiguous groupings and equal groups, simulated
/// in full, and the best of them.
int tune_groupings(const Job& job, Arguments& arguments);

}  // namespace foreshard::cli
