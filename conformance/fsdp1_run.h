#pragma once

#include "core/json_fwd.h"

namespace foreshard {

/// Runs one case of golden/fsdp1 on our planner's host and returns what the recordings call
/// `result`: events and units, or events and the error if the job is refused.
Json run_fsdp1_case(const Json& golden_case);

/// `units` alone, from the wrapping; an empty object if the wrapping is refused.
Json fsdp1_tables(const Json& golden_case);

}  // namespace foreshard
