#include "schedules/planner/recipes/scratch.h"

#include <algorithm>
#include <bit>

#include "core/integers.h"

namespace foreshard {
namespace {

/// dK and dV are accumulated in fp32, too.
bool accumulates_keys(const EfficientAttentionShape& s) {
  return s.half && std::max(s.head, s.value_head) > 128;
}

}  // namespace

std::int64_t scan_scratch_bytes(std::int64_t n, std::int64_t sum_bytes) {
  // 15 items of 4 bytes a thread, scaled by the size of the sum
  // (cub/device/dispatch/tuning/tuning_scan.cuh).
  const std::int64_t tile = 128 * (15 * 4 / sum_bytes);
  const std::int64_t descriptors = (ceil_div(n, tile) + 32) * 2 * sum_bytes;
  return round_up(descriptors, 256) + 256 + 255;
}

std::int64_t radix_sort_scratch_bytes(std::int64_t n, std::int64_t keys) {
  if (n <= 2304) return 1;  // One tile of 256 threads and 9 pairs each needs none.
  const auto bits = static_cast<std::int64_t>(
      std::bit_width(static_cast<std::uint64_t>(keys > 1 ? keys - 1 : 1)));
  const std::int64_t passes = (bits + 7) / 8;
  return 2 * round_up(8 * n, 256) + passes * 2048 + (n + 4607) / 4608 * 1024 + 511;
}

std::int64_t efficient_attention_splits(const EfficientAttentionShape& s) {
  const std::int64_t head = std::max(s.head, s.value_head);
  const std::int64_t block = s.half && head > 64 && head <= 128 ? 128 : 64;
  std::int64_t splits = ceil_div(s.keys, block);
  if (s.batch_heads >= 256) {
    if (s.keys <= 2 * block) splits = 1;
  } else if (accumulates_keys(s)) {
    splits = std::min(splits, 200 / s.batch_heads);
  }
  return std::max<std::int64_t>(1, splits);
}

std::int64_t efficient_attention_workspace_bytes(const EfficientAttentionShape& s) {
  const std::int64_t head = std::max(s.head, s.value_head);
  // Tile of queries and columns of the fp32 accumulator of dQ, by the kernel that takes this head
  // size.
  std::int64_t rows = 64, columns = 64;
  if (head > 128) {
    rows = 128;
  } else if (head > 64) {
    rows = s.half ? 128 : 64;
    columns = 128;
  }
  // In fp32 the kernel for these head sizes takes 128 queries at once, in two tiles.
  const std::int64_t queries = round_up(s.queries, head > 64 ? 128 : rows);
  const std::int64_t tiles = queries / rows * (round_up(s.head, columns) / columns);
  std::int64_t bytes = tiles * (4 * rows * columns + 16);
  if (accumulates_keys(s)) {  // One block of 64 keys for each split.
    bytes += 4 * efficient_attention_splits(s) * 64 *
             (round_up(s.head, rows) + round_up(s.value_head, rows));
  }
  return s.batch_heads * bytes;
}

}  // namespace foreshard
