#pragma once

// One golden case of golden/zero: what to build and the DeepSpeed options (format: docs of the
// recordings).

#include "conformance/model_spec.h"
#include "core/json_fwd.h"
#include "schedules/planner/config.h"
#include "schedules/planner/frameworks/zero.h"

namespace foreshard {

struct ZeroCase {
  ModelSpec spec;
  ParallelConfig config;
  zero::Extras extras;
  std::int64_t rank = 0, steps = 4;
};

/// Ends the names of modules that checkpoint_wrapper adds; the recordings show them by the name of
/// what they wrap.
inline constexpr const char* kCheckpointWrapper = "@checkpoint";

/// InputError on malformed cases.
ZeroCase read_zero_case(const Json& golden_case);

}  // namespace foreshard
