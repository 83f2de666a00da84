#pragma once

#include "core/json_fwd.h"

namespace foreshard {

/// Runs one case of golden/ddp on our planner's host: `events` (no step is shortened) and, unless
/// DDP stopped with an `error` {type}, `params`, `initial`, `logged` and (without a communication
/// hook) `buckets`, as the recordings have them.
Json run_ddp_case(const Json& golden_case);

}  // namespace foreshard
