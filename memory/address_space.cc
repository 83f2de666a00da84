#include "memory/address_space.h"

#include <algorithm>

namespace foreshard {

std::vector<AddressSpace::Range>::const_iterator AddressSpace::at_or_after(
    std::int64_t offset) const {
  return std::lower_bound(ranges_.begin(), ranges_.end(), offset,
                          [](const Range& r, std::int64_t o) { return r.begin < o; });
}

std::int64_t AddressSpace::place(std::int64_t size) {
  if (size > window_) return -1;
  if (next_ <= window_ - size) {
    const std::int64_t offset = next_;
    ranges_.push_back({offset, offset + size});
    next_ = std::min(window_, offset + size + kGranule);
    return offset;
  }
  std::int64_t begin = 0;
  for (auto it = ranges_.begin();; ++it) {
    const std::int64_t end = it == ranges_.end() ? window_ : it->begin - kGranule;
    if (end - begin >= size) {
      ranges_.insert(it, {begin, begin + size});
      return begin;
    }
    if (it == ranges_.end()) return -1;
    begin = it->end + kGranule;
  }
}

bool AddressSpace::remove(std::int64_t offset, std::int64_t size) {
  const auto it = at_or_after(offset);
  if (it == ranges_.end() || it->begin != offset || it->end != offset + size) return false;
  ranges_.erase(it);
  return true;
}

bool AddressSpace::contains(std::int64_t offset, std::int64_t size) const {
  auto it = at_or_after(offset + 1);
  if (it == ranges_.begin()) return false;
  --it;
  return offset >= it->begin && size <= it->end - offset;
}

}  // namespace foreshard
