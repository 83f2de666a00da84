#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace foreshard {

/// The cached blocks of one pool in best-fit order: by size, equal sizes by address.
///
/// Training repeats few sizes: recorded pools hold up to 600 blocks but at most 33 sizes. So the
/// order has two levels: the sizes in use, sorted, and for each the blocks of that size, highest
/// address first, so that taking the lowest and giving it back touch only the end. No allocation
/// once the vectors have grown. Sizes are exact up to 2^53 bytes.
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
  std::int64_t bytes(Cursor c) const { return static_cast<std::int64_t>(sizes_[c.size_rank]); }

  /// The last block of the order; there must be one.
  Index largest() const { return members(count_ - 1).front().block; }

  Index take(Cursor c) {
    std::vector<Member>& m = members(c.size_rank);
    const Index taken = m[c.place].block;
    erase(m, c.size_rank, c.place);
    return taken;
  }

  void insert(Index block, std::int64_t bytes, std::uint64_t address) {
    insert_at(rank(bytes), block, bytes, address);
  }

  /// The place of a block that is there.
  Cursor find(std::int64_t bytes, std::uint64_t address) const {
    const std::size_t r = rank(bytes);
    const std::vector<Member>& m = members(r);
    return {r, m.back().address == address ? m.size() - 1 : place_of(m, address)};
  }

  /// take(from) and insert(block, bytes, address) in one: what a split or a merge does.
  void replace(Cursor from, Index block, std::int64_t bytes, std::uint64_t address) {
    const std::size_t old = from.size_rank;
    std::size_t r = rank(bytes);
    const bool alone = members(old).size() == 1;
    if (!alone || (r < count_ && sizes_[r] == static_cast<double>(bytes))) {
      take(from);  // With the last of its size the sizes above move down.
      insert_at(alone && r > old ? r - 1 : r, block, bytes, address);
      return;
    }
    const std::uint32_t slot = slots_[old];
    members_[slot].back() = {address, block};
    if (r > old) --r;
    for (std::size_t k = old; k < r; ++k) {
      sizes_[k] = sizes_[k + 1];
      slots_[k] = slots_[k + 1];
    }
    for (std::size_t k = old; k > r; --k) {
      sizes_[k] = sizes_[k - 1];
      slots_[k] = slots_[k - 1];
    }
    sizes_[r] = static_cast<double>(bytes);
    slots_[r] = slot;
  }

  /// Removes a block that is there.
  void remove(std::int64_t bytes, std::uint64_t address) { take(find(bytes, address)); }

  /// Appends all blocks in order.
  void append_to(std::vector<Index>& out) const {
    for (std::size_t r = 0; r < count_; ++r) {
      for (auto it = members(r).rbegin(); it != members(r).rend(); ++it) out.push_back(it->block);
    }
  }

 private:
  using Sizes = double __attribute__((vector_size(16)));
  using Counts = std::int64_t __attribute__((vector_size(16)));

  struct Member {
    std::uint64_t address;
    Index block;
  };

  std::vector<Member>& members(std::size_t r) { return members_[slots_[r]]; }
  const std::vector<Member>& members(std::size_t r) const { return members_[slots_[r]]; }

  /// `r`: rank(bytes).
  void insert_at(std::size_t r, Index block, std::int64_t bytes, std::uint64_t address) {
    if (r == count_ || sizes_[r] != static_cast<double>(bytes)) open(r, bytes);
    std::vector<Member>& m = members(r);
    if (m.empty() || address < m.back().address) {
      m.push_back({address, block});
    } else {
      m.insert(m.begin() + static_cast<std::ptrdiff_t>(place_of(m, address)), {address, block});
    }
  }

  Cursor at_rank(std::size_t r) const { return {r, r < count_ ? members(r).size() - 1 : 0}; }

  // Number of sizes below `bytes`. Few sizes are counted rather than searched: vector instructions,
  // nothing to mispredict.
  std::size_t rank(std::int64_t bytes) const {
    const auto wanted = static_cast<double>(bytes);
    if (count_ > kCounted) [[unlikely]]
      return rank_by_search(wanted);
    const Sizes limit = {wanted, wanted};
    Counts below = {0, 0};
    const double* end = sizes_.data() + count_;
    for (const double* at = sizes_.data(); at < end; at += kStride) {
#pragma GCC unroll 4
      for (std::size_t j = 0; j < kStride; j += 2) {
        Sizes some;
        std::memcpy(&some, at + j, sizeof some);
        below -= some < limit;  // a true lane is -1
      }
    }
    return static_cast<std::size_t>(below[0] + below[1]);
  }

  std::size_t rank_by_search(double wanted) const {
    const auto end = sizes_.begin() + static_cast<std::ptrdiff_t>(count_);
    return static_cast<std::size_t>(std::lower_bound(sizes_.begin(), end, wanted) - sizes_.begin());
  }

  static std::size_t place_of(const std::vector<Member>& m, std::uint64_t address) {
    const auto above = [](const Member& a, std::uint64_t b) { return a.address > b; };
    return static_cast<std::size_t>(std::lower_bound(m.begin(), m.end(), address, above) -
                                    m.begin());
  }

  void open(std::size_t r, std::int64_t bytes) {
    if (count_ == slots_.size()) grow();
    const std::uint32_t slot = slots_[count_];
    for (std::size_t k = count_; k > r; --k) {
      sizes_[k] = sizes_[k - 1];
      slots_[k] = slots_[k - 1];
    }
    sizes_[r] = static_cast<double>(bytes);
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
    sizes_[count_] = kPadding;
    slots_[count_] = slot;
  }

  void grow() {
    const std::size_t n = slots_.size() + kStride;
    sizes_.resize(n, kPadding);
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
  static constexpr std::size_t kCounted = 64;
  static constexpr double kPadding = std::numeric_limits<double>::infinity();

  std::size_t count_ = 0;      ///< Sizes in use.
  std::vector<double> sizes_;  ///< Ascending; padded to whole strides by infinity.
  std::vector<std::uint32_t>
      slots_;  ///< For each size its entry of members_; then the unused entries.
  std::vector<std::vector<Member>> members_;  ///< Blocks of one size, by descending address.
};

}  // namespace foreshard
