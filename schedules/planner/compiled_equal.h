#pragma once

#include <string>
#include <vector>

#include "schedules/schedule.h"

namespace foreshard {

/// torch.compile of each block: a generated kernel that repeats an earlier one of the same run of
/// the block's forward (autocast's casts of one input for several products) is left out; who reads
/// its result reads the earlier one's (fx_graph_cse of torch/_functorch/compile_utils.py, which the
/// partitioner calls). Needs tensors and operands. `blocks`: fully qualified names.
void merge_equal_kernels(RankProgram& program, const std::vector<std::string>& blocks);

}  // namespace foreshard
