#pragma once

#include "cli/command.h"
#include "study/job.h"

namespace foreshard::cli {

/// `tune --all-groupings`: the exact front of contiguous groupings, the fastest one simulated in
/// full beside one block a unit.
int tune_groupings(const Job& job, Arguments& arguments);

}  // namespace foreshard::cli
