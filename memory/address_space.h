#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace foreshard {

/// Places ranges in a window of addresses: each new range above all earlier ones, one free granule
/// (2 MiB) apart, as the recordings of PyTorch did; only when the top is reached, the lowest gap
/// that fits. Deterministic, so that a simulated and a real device of the same window order their
/// segments alike. Offsets and sizes in bytes.
class AddressSpace {
 public:
  static constexpr std::int64_t kGranule = 2 << 20;

  explicit AddressSpace(std::int64_t window) : window_(window) {}

  /// Offset of the new range, or -1 if no gap is large enough. `size` must be positive.
  std::int64_t place(std::int64_t size);
  /// Gives back the range that begins at `offset`; false if there is none of this size.
  bool remove(std::int64_t offset, std::int64_t size);
  /// Whether [offset, offset + size) lies inside one placed range.
  bool contains(std::int64_t offset, std::int64_t size) const;

 private:
  struct Range {
    std::int64_t begin;
    std::int64_t end;  ///< `begin` once it is removed.
    bool removed() const { return end == begin; }
  };
  std::vector<Range>::const_iterator at_or_after(std::int64_t offset) const;

  void forget_removed();

  std::int64_t window_;
  std::int64_t next_ = 0;
  std::vector<Range> ranges_;  ///< By offset. Removed ones are empty until they are many.
  std::size_t removed_ = 0;
};

}  // namespace foreshard
