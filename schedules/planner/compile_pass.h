#pragma once

#include <string>
#include <vector>

#include "schedules/schedule.h"

namespace foreshard {

/// torch.compile of each block: neighbouring element-wise and normalisation kernels of one block,
/// between two products or attention kernels, become one generated kernel. It reads each outside
/// tensor once and writes each tensor that lives on; values that die inside stay in registers and
/// are never allocated. What lives on is compiled_saves.h's. Needs tensors and operands
/// (PlanOptions::executable); the result can be simulated, not executed. `blocks`: fully qualified
/// names of the compiled modules.
void fuse_compiled_blocks(RankProgram& program, const std::vector<std::string>& blocks);

}  // namespace foreshard
