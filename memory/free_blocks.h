#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace foreshard {

/// The cached blocks of one pool in best-fit order: by size, equal sizes by address. Sorted keys in flat memory:
/// the search reads only the keys, and an insertion moves the tail of two short arrays.
///
/// Keys are sizes in units of 512 B, capped at 2^32 - 1; beyond that cap (2 TiB) order falls back to the blocks
/// themselves. `order(i)` gives the pair (size, address) of block i as something comparable.
class FreeBlocks {
 public:
  using Index = std::uint32_t;

  std::size_t size() const { return ids_.size(); }
  bool empty() const { return ids_.empty(); }
  Index operator[](std::size_t position) const { return ids_[position]; }

  /// Position of the first block whose key is at least that of `bytes`: the best fit, unless bytes is past the cap.
  std::size_t lower_bound(std::int64_t bytes) const {
    const std::uint32_t key = key_of(bytes);
    const std::uint32_t* base = keys_.data();
    std::size_t n = keys_.size();
    if (n == 0) return 0;
    while (n > 1) {
      const std::size_t half = n / 2;
      base += base[half - 1] < key ? half : 0;
      n -= half;
    }
    return static_cast<std::size_t>(base - keys_.data()) + (*base < key ? 1 : 0);
  }

  /// Position of block `i`, or where it belongs.
  template <typename Order>
  std::size_t position(Index i, std::int64_t bytes, const Order& order) const {
    const std::uint32_t key = key_of(bytes);
    std::size_t p = lower_bound(bytes);
    if (p == keys_.size() || keys_[p] != key) return p;
    const auto mine = order(i);
    if (!(order(ids_[p]) < mine)) return p;
    std::size_t end = p + 1;
    std::size_t step = 1;
    while (end < keys_.size() && keys_[end] == key && order(ids_[end]) < mine) {
      p = end;
      end += step;
      step *= 2;
    }
    end = std::min(end, keys_.size());
    ++p;
    while (p < end) {
      const std::size_t middle = p + (end - p) / 2;
      if (keys_[middle] == key && order(ids_[middle]) < mine) {
        p = middle + 1;
      } else {
        end = middle;
      }
    }
    return p;
  }

  void insert_at(std::size_t position, Index i, std::int64_t bytes) {
    const auto offset = static_cast<std::ptrdiff_t>(position);
    keys_.insert(keys_.begin() + offset, key_of(bytes));
    ids_.insert(ids_.begin() + offset, i);
  }

  void erase_at(std::size_t position) {
    const auto offset = static_cast<std::ptrdiff_t>(position);
    keys_.erase(keys_.begin() + offset);
    ids_.erase(ids_.begin() + offset);
  }

 private:
  static std::uint32_t key_of(std::int64_t bytes) {
    const std::int64_t units = bytes >> 9;
    return static_cast<std::uint32_t>(std::min<std::int64_t>(units, UINT32_MAX));
  }

  std::vector<std::uint32_t> keys_;
  std::vector<Index> ids_;
};

}  // namespace foreshard
