#pragma once

#include <string>
#include <vector>

#include "schedules/schedule.h"

namespace foreshard {

/// torch.compile of each block, what it holds: its partitioner decides which values of a block's
/// forward backward keeps (joint_graph.h). Generated backward kernels that read another value make
/// it again in their registers from those kept, so that it takes no memory in backward; every value
/// is dropped after its last use. A block that is checkpointed runs its forward again whole; the
/// values between that and its backward are chosen by the same rules, which stand for Inductor's
/// inlining in one graph. Needs tensors and operands (PlanOptions::executable) and a program that
/// is not fused yet. `blocks`: fully qualified names of the compiled modules.
void keep_compiled_saves(RankProgram& program, const std::vector<std::string>& blocks);

}  // namespace foreshard
