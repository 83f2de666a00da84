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
#include "study/memory_replay.h"

namespace foreshard {

struct MemoryCase {
  std::string id;
  Model model;
  ParallelConfig config;
  std::int64_t rank = 0, steps = 3;
  AllocatorOptions allocator;
  Bytes device_memory;
  DeviceEvents events = DeviceEvents::kInstant;
  std::int64_t lag = 0;  ///< `events: lag:N`.
  /// The recordings make Hugging Face models whose parameters are offloaded empty in host memory,
  /// and their buffers stay there: the forward copies what it needs of them.
  bool buffers_on_host = false;
};

/// Reads `case`; InputError on what we cannot express.
MemoryCase read_memory_case(const Json& golden_case);

}  // namespace foreshard
