#pragma once

#include <cstdint>
#include <vector>

#include "conformance/model_spec.h"
#include "core/json_fwd.h"
#include "schedules/planner/config.h"

namespace foreshard {

/// One golden case of golden/ddp: what to build and how to train it.
struct DdpCase {
  ModelSpec spec;
  ParallelConfig config;
  std::vector<bool> micro_batches;  ///< For each of a step: gradients are synchronised.
  std::int64_t rank = 0, steps = 3;
};

/// InputError on malformed cases.
DdpCase read_ddp_case(const Json& golden_case);

}  // namespace foreshard
