#pragma once

// Temporary storage of device-wide algorithms (CUB), by their own rules. Each agrees with the
// requests recorded from PyTorch 2.15 on a stand-in H100.

#include <cstdint>

namespace foreshard {

/// Multiprocessors of the device whose kernels size their workspaces (H100 SXM).
inline constexpr std::int64_t kMultiprocessors = 132;

/// cub::DeviceScan over n elements whose sums take `sum_bytes` (4 or 8): a tile descriptor for each
/// tile of 128 threads and 32 more, of twice the sum's size; rounded to 256 bytes, plus the
/// reserved first allocation and the alignment's slack.
std::int64_t scan_scratch_bytes(std::int64_t n, std::int64_t sum_bytes);
/// cub::DeviceRadixSort (one sweep) of n pairs of int64 with keys in [0, keys): both arrays again,
/// 256 bins of 8 bytes a pass of 8 bits, 1 KiB of look-back a tile of 4,608, counters, alignment. A
/// single tile needs nothing.
std::int64_t radix_sort_scratch_bytes(std::int64_t n, std::int64_t keys);

/// Workspace of the memory-efficient attention's backward (cutlass kernel_backward.h,
/// workspace_size) for Ampere and later.
struct EfficientAttentionShape {
  std::int64_t batch_heads, queries, keys, head, value_head;
  bool half;  ///< 16-bit inputs.
};
std::int64_t efficient_attention_workspace_bytes(const EfficientAttentionShape& s);
/// Parts of the keys that share a row of dQ; where there are several, the workspace is set to zero.
std::int64_t efficient_attention_splits(const EfficientAttentionShape& s);

}  // namespace foreshard
