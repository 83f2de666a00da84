#include "memory/allocator_stats.h"

#include "core/format.h"

namespace foreshard {

void AllocatorStats::reset_peaks() {
  for (Gauge* gauge :
       {&allocated, &active, &reserved, &requested, &inactive_split, &inactive_split_blocks,
        &segments, &allocations, &oversize_allocations, &oversize_segments}) {
    gauge->reset_peak();
  }
}

std::string OutOfMemory::text() const {
  std::string text = "out of memory: tried to allocate " + format_memory(segment) + " on stream " +
                     std::to_string(stream) + "; the device has " + format_memory(capacity) +
                     ", of which " + format_memory(device_free) + " is free";
  if (allowed < capacity) text += "; " + format_memory(allowed) + " allowed";
  return text + "; " + format_memory(allocated) + " is allocated and " +
         format_memory(reserved - allocated) + " is reserved but unallocated";
}

}  // namespace foreshard
