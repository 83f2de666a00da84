#pragma once

#include "core/json_fwd.h"

namespace foreshard {

/// Runs one case of golden/zero on our planner's host: `events` (no step is shortened), `stage`,
/// and `groups` or `params` and `sub_groups`, as the recordings have them.
Json run_zero_case(const Json& golden_case);

}  // namespace foreshard
