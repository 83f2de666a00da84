#pragma once

// Memory of a program on the caching allocator, without a clock: its allocations and frees in host
// order.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "memory/options.h"
#include "schedules/schedule.h"

namespace foreshard {

struct PhasePeaks {
  std::string phase;  ///< "forward", "backward mb1", ...
  std::int64_t peak_allocated = 0, peak_reserved = 0, peak_active = 0;
};

struct StepPeaks {
  std::vector<PhasePeaks> phases;
  std::int64_t peak_allocated = 0, peak_reserved = 0, peak_active = 0;
  std::int64_t allocated_end = 0, reserved_end = 0;
  std::int64_t retries = 0;  ///< Since the start.
};

struct MemoryReplay {
  std::int64_t init_allocated = 0, init_reserved = 0;
  std::vector<StepPeaks> steps;  ///< Completed ones.
  std::int64_t retries = 0, ooms = 0;
  std::optional<std::string>
      oom;  ///< Phase in which memory ran out ("init" before the first step).
};

/// When an event of the device is complete.
enum class DeviceEvents : std::uint8_t {
  kInstant,
  kWhenWaited,  ///< Once the host has waited for it, or for work that waited for it.
  kLagging,     ///< Also once so many operations (kernels, copies, collectives) were issued later.
};

struct ReplayOptions {
  AllocatorOptions allocator;
  Bytes device_memory;
  DeviceEvents events = DeviceEvents::kInstant;
  std::int64_t lag = 0;               ///< Operations, for kLagging.
  bool number_micro_batches = false;  ///< Phase names carry the micro-batch.
};

MemoryReplay replay_memory(const RankProgram& program, const ReplayOptions& options);

}  // namespace foreshard
