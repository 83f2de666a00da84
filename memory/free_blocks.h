#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace foreshard {

/// The cached blocks of one pool in best-fit order: by size, equal sizes by address.
///
/// Training repeats few sizes: recorded pools hold up to 600 blocks but at most 33 sizes. So the order has two levels:
/// the sizes in use, sorted, and for each the blocks of that size, highest address first, so that taking the lowest and
/// giving it back touch only the end. No allocation once the vectors have grown.
class FreeBlocks {
 public:
  using Index = std::uint32_t;

  /// A place in the order; invalid after any change.
  struct Cursor {
    std::size_t size_rank = 0;  ///< Rank among the sizes in use.
    std::size_t place = 0;      ///< Place among the blocks of that size.
  };

  bool empty() const { return count_ == 0; }

  /// The smallest block of at least `bytes`.
  Cursor best_fit(std::int64_t bytes) const { return at_rank(rank(bytes)); }
  bool at_end(Cursor c) const { return c.size_rank == count_; }
  Cursor next(Cursor c) const {
    if (c.place > 0) return {c.size_rank, c.place - 1};
    return at_rank(c.size_rank + 1);
  }
  Index block(Cursor c) const { return members(c.size_rank)[c.place].block; }
  std::int64_t bytes(Cursor c) const { return sizes_[c.size_rank]; }

  /// The last block of the order; there must be one.
  Index largest() const { return members(count_ - 1).front().block; }

  Index take(Cursor c) {
    std::vector<Member>& m = members(c.size_rank);
    const Index taken = m[c.place].block;
    erase(m, c.size_rank, c.place);
    return taken;
  }

  void insert(Index block, std::int64_t bytes, std::uint64_t address) {
    const std::size_t r = rank(bytes);
    if (r == count_ || sizes_[r] != bytes) open(r, bytes);
    std::vector<Member>& m = members(r);
    if (m.empty() || address < m.back().address) {
      m.push_back({address, block});
    } else {
      m.insert(m.begin() + static_cast<std::ptrdiff_t>(place_of(m, address)), {address, block});
    }
  }

  /// Removes a block that is there.
  void remove(std::int64_t bytes, std::uint64_t address) {
    const std::size_t r = rank(bytes);
    std::vector<Member>& m = members(r);
    erase(m, r, m.back().address == address ? m.size() - 1 : place_of(m, address));
  }

  /// Appends all blocks in order.
  void append_to(std::vector<Index>& out) const {
    for (std::size_t r = 0; r < count_; ++r) {
      for (auto it = members(r).rbegin(); it != members(r).rend(); ++it) out.push_back(it->block);
    }
  }

 private:
  struct Member {
    std::uint64_t address;
    Index block;
  };

  std::vector<Member>& members(std::size_t r) { return members_[slots_[r]]; }
  const std::vector<Member>& members(std::size_t r) const { return members_[slots_[r]]; }

  Cursor at_rank(std::size_t r) const { return {r, r < count_ ? members(r).size() - 1 : 0}; }

  // Number of sizes below `bytes`. Counts instead of searching where the sizes are few: nothing to mispredict.
  std::size_t rank(std::int64_t bytes) const {
    constexpr std::size_t kCounted = 64;
    if (count_ > kCounted) [[unlikely]] {
      return static_cast<std::size_t>(
          std::lower_bound(sizes_.begin(), sizes_.begin() + static_cast<std::ptrdiff_t>(count_), bytes) -
          sizes_.begin());
    }
    std::size_t below = 0;
    for (std::size_t k = 0; k < count_; k += kStride) {
      for (std::size_t j = 0; j < kStride; ++j) below += sizes_[k + j] < bytes ? 1 : 0;
    }
    return below;
  }

  static std::size_t place_of(const std::vector<Member>& m, std::uint64_t address) {
    const auto above = [](const Member& a, std::uint64_t b) { return a.address > b; };
    return static_cast<std::size_t>(std::lower_bound(m.begin(), m.end(), address, above) - m.begin());
  }

  void open(std::size_t r, std::int64_t bytes) {
    if (count_ == slots_.size()) grow();
    const std::uint32_t slot = slots_[count_];
    for (std::size_t k = count_; k > r; --k) {
      sizes_[k] = sizes_[k - 1];
      slots_[k] = slots_[k - 1];
    }
    sizes_[r] = bytes;
    slots_[r] = slot;
    ++count_;
  }

  void close(std::size_t r) {
    --count_;
    const std::uint32_t slot = slots_[r];
    for (std::size_t k = r; k < count_; ++k) {
      sizes_[k] = sizes_[k + 1];
      slots_[k] = slots_[k + 1];
    }
    sizes_[count_] = INT64_MAX;
    slots_[count_] = slot;
  }

  void grow() {
    const std::size_t n = slots_.size() + kStride;
    sizes_.resize(n, INT64_MAX);
    members_.resize(n);
    for (std::size_t k = slots_.size(); k < n; ++k) slots_.push_back(static_cast<std::uint32_t>(k));
  }

  void erase(std::vector<Member>& m, std::size_t r, std::size_t place) {
    if (place + 1 == m.size()) {
      m.pop_back();
    } else {
      m.erase(m.begin() + static_cast<std::ptrdiff_t>(place));
    }
    if (m.empty()) close(r);
  }

  static constexpr std::size_t kStride = 8;

  std::size_t count_ = 0;                     ///< Sizes in use.
  std::vector<std::int64_t> sizes_;           ///< Ascending; padded to whole strides by INT64_MAX.
  std::vector<std::uint32_t> slots_;          ///< For each size its entry of members_; then the unused entries.
  std::vector<std::vector<Member>> members_;  ///< Blocks of one size, by descending address.
};

}  // namespace foreshard
