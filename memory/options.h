#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/units.h"

namespace foreshard {

/// Fixed sizes of PyTorch's CUDA caching allocator (rules;
/// c10/cuda/CUDACachingAllocator.cpp).
inline constexpr Bytes kMinBlockBytes{512};          ///< Every block is a multiple of this.
inline constexpr Bytes kSmallRequestBytes{1 << 20};  ///< Largest rounded request of the small pool.
inline constexpr Bytes kSmallSegmentBytes{2 << 20};  ///< Segment (and page) of the small pool.
inline constexpr Bytes kMinLargeSegmentRequest{10
                                               << 20};  ///< From here a segment fits its request.
inline constexpr Bytes kLargeSegmentRounding{2 << 20};  ///< ... rounded up to this.

/// Largest size that the allocator takes for "no limit" (2^62 bytes).
inline constexpr Bytes kNoByteLimit{std::int64_t{1} << 62};

/// Settings of the caching allocator, as PYTORCH_CUDA_ALLOC_CONF and
/// torch.cuda.set_per_process_memory_fraction give them. The defaults are PyTorch's.
struct AllocatorOptions {
  /// Blocks of at least this size are never split and serve only requests of at least this size
  /// . Default: no limit. Lower it when reserved far exceeds allocated and requests vary in
  /// size.
  Bytes max_split_size = kNoByteLimit;

  /// How much larger than an oversize request an oversize cached block may be. Default 20
  /// MiB. Matters only with max_split_size; raise it to reuse more and waste more.
  Bytes max_non_split_rounding{20 << 20};

  /// Segment for requests between 1 and 10 MiB, and page of large expandable segments.
  /// Default 20 MiB; at least 10 MiB. Lower it when little memory is left for a few such requests.
  Bytes large_segment_size{20 << 20};

  /// One growing address range per stream and pool in place of one segment per miss.
  /// Default off. Turn on when fragmentation makes a fitting job run out of memory.
  bool expandable_segments = false;

  /// With memory_fraction: above this share of the allowed memory, a miss first frees the cached
  /// large segments that were unused for longest. Default 0 (off); otherwise in (0, 1).
  double garbage_collection_threshold = 0;

  /// Share of the device's memory that segments may take; none = all of it, without the check.
  /// Set to leave room for other users of the device, or to enable garbage collection.
  std::optional<double> memory_fraction;

  /// Requests are rounded up to 1/n of the power of two below them: entry i is n for requests
  /// in [2^i, 2^(i+1)) MiB, the first also for smaller and the last also for larger ones. 0 or 1:
  /// plain rounding to 512 B. Default all 0. Use for request sizes that vary from step to step.
  std::array<std::uint32_t, 16> roundup_power2_divisions{};

  /// Throws InputError naming each value that is out of its range; `origin` is named as the file.
  void validate(std::string_view origin = "allocator options") const;

  bool operator==(const AllocatorOptions&) const = default;
};

/// Reads the text of PYTORCH_CUDA_ALLOC_CONF, "key:value,key:value", as PyTorch does. Options
/// without effect on which memory is taken (pinned host memory, locks, graphs) are accepted and
/// ignored. `backend:cudaMallocAsync` is refused: it is another allocator. Throws InputError with
/// every problem found.
AllocatorOptions parse_alloc_conf(std::string_view text);

/// Up to the next multiple of kMinBlockBytes.
constexpr std::int64_t round_to_block(std::int64_t bytes) {
  constexpr std::int64_t kMask = kMinBlockBytes.value - 1;
  static_assert((kMinBlockBytes.value & kMask) == 0, "a power of two");
  return (bytes + kMask) & ~kMask;
}

/// Rule A-1: the bytes that a request takes from the pool.
Bytes round_request(Bytes request, const AllocatorOptions& options);

/// Rule A-3: the segment that is asked from the device when no cached block serves `rounded` bytes.
Bytes segment_bytes_for(Bytes rounded, const AllocatorOptions& options);

}  // namespace foreshard
