#pragma once

#include "core/json_fwd.h"

namespace foreshard {

/// Runs one case of golden/fsdp2 on our planner's host and returns what the recordings call
/// `result`: events, units, buffers, unsharded parameters and the error, if the job is refused.
Json run_fsdp2_case(const Json& golden_case);

}  // namespace foreshard
