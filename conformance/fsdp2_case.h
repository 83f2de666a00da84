#pragma once

// One golden case of golden/fsdp2: what to build and the script to run (format: see docs of the
// recordings; keys not given take PyTorch's defaults).

#include <string>
#include <vector>

#include "conformance/model_spec.h"
#include "core/json_fwd.h"
#include "schedules/planner/config.h"
#include "schedules/planner/frameworks/fsdp2_wrap.h"

namespace foreshard {

struct Fsdp2Case {
  ModelSpec spec;
  ParallelConfig config;
  fsdp2::WrapExtras extras;
  std::int64_t rank = 0;
};

/// Model, wrap calls and meshes of a case; the script stays in the JSON. InputError on malformed
/// cases.
Fsdp2Case read_fsdp2_case(const Json& golden_case);

}  // namespace foreshard
