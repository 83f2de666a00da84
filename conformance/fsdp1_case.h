#pragma once

// One golden case of golden/fsdp1: model, wrapping, options and the script of its steps (format:
// docs of the recordings; options not given take PyTorch's defaults).

#include <cstdint>
#include <vector>

#include "conformance/model_spec.h"
#include "core/json_fwd.h"
#include "schedules/planner/config.h"

namespace foreshard {

struct Fsdp1Case {
  ModelSpec spec;
  ParallelConfig config;
  std::int64_t rank = 0, steps = 3;
  std::vector<bool> micro_batches;  ///< Of every step; false: under no_sync.
};

/// InputError on malformed cases and on options that have no meaning here.
Fsdp1Case read_fsdp1_case(const Json& golden_case);

}  // namespace foreshard
