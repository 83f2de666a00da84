#pragma once

// A case of golden/memory as model, configuration and device.

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/json_fwd.h"
#include "core/units.h"
#include "memory/options.h"
#include "models/module_tree.h"
#include "schedules/planner/config.h"

namespace foreshard {

struct MemoryCase {
  std::string id;
  Model model;
  ParallelConfig config;
  std::int64_t rank = 0, steps = 3;
  AllocatorOptions allocator;
  Bytes device_memory;
  bool events_only_when_waited =
      false;  ///< `events: sync`: the device advances only when the host waits.
};

/// Reads `case`; InputError on what we cannot express.
MemoryCase read_memory_case(const Json& golden_case);

}  // namespace foreshard
