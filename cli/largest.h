#pragma once

#include "cli/command.h"
#include "sim/options.h"
#include "study/job.h"

namespace foreshard::cli {

/// `simulate --largest micro-batch|seq`: the largest that fits, and what it gives.
int answer_largest(const Job& job, Arguments& arguments, const SimulationOptions& options);

}  // namespace foreshard::cli
