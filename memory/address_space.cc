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
  forget_removed();
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
  if (size <= 0 || it == ranges_.end() || it->begin != offset || it->end != offset + size)
    return false;
  ranges_[static_cast<std::size_t>(it - ranges_.begin())].end = offset;
  if (2 * ++removed_ > ranges_.size()) forget_removed();
  return true;
}

void AddressSpace::forget_removed() {
  std::erase_if(ranges_, [](const Range& r) { return r.removed(); });
  removed_ = 0;
}

bool AddressSpace::contains(std::int64_t offset, std::int64_t size) const {
  for (auto it = at_or_after(offset + 1); it != ranges_.begin();) {
    if (!(--it)->removed()) return offset >= it->begin && size <= it->end - offset;
  }
  return false;
}

}  // namespace foreshard
