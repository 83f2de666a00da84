#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/units.h"

namespace foreshard {

/// A value and the highest it was since the last reset_peaks().
struct Gauge {
  std::int64_t current = 0;
  std::int64_t peak = 0;

  void add(std::int64_t n) {
    current += n;
    peak = std::max(peak, current);
  }
  void subtract(std::int64_t n) { current -= n; }
  void reset_peak() { peak = current; }
};

/// Statistics with the meaning of torch.cuda.memory_stats (rule A-8). Bytes unless said otherwise.
struct AllocatorStats {
  Gauge allocated;       ///< Blocks in the program's hands; falls at free().
  Gauge active;          ///< allocated + freed blocks that other streams still use (A-9).
  Gauge reserved;        ///< Segments (and mapped pages) taken from the device.
  Gauge requested;       ///< active, as asked for before rounding.
  Gauge inactive_split;  ///< Free parts of segments that are partly in use; not for expandable
                         ///< segments.
  Gauge inactive_split_blocks;  ///< ... their number.
  Gauge segments;               ///< Number of segments; expandable ones are not counted.
  Gauge allocations;            ///< Number of blocks in the program's hands.
  Gauge oversize_allocations;   ///< Number of blocks in use of at least max_split_size.
  Gauge oversize_segments;      ///< Number of segments of at least max_split_size.
  std::int64_t retries =
      0;  ///< Misses that had to return the cache to the device (num_alloc_retries).
  std::int64_t ooms = 0;   ///< Requests that failed.
  std::int64_t syncs = 0;  ///< Waits for all pending events (num_sync_all_streams).
  std::int64_t device_allocs =
      0;  ///< Times that memory was taken from the device (num_device_alloc).
  std::int64_t device_frees = 0;  ///< Times that memory was returned to it (num_device_free).

  /// Peaks become the current values; counters stay.
  void reset_peaks();
};

/// Why a request failed.
struct OutOfMemory {
  Bytes requested;    ///< As asked for.
  Bytes segment;      ///< The segment that the device could not give.
  Bytes allocated;    ///< In the program's hands at that moment.
  Bytes reserved;     ///< Held by the allocator after it returned all it could.
  Bytes capacity;     ///< Memory of the device ...
  Bytes device_free;  ///< ... and what of it was free.
  Bytes allowed;      ///< Limit from memory_fraction, or capacity.
  std::uint32_t stream = 0;

  /// One sentence for people, in the order of PyTorch's message.
  std::string text() const;
};

}  // namespace foreshard
