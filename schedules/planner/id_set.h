#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace foreshard {

/// A set of ids that index one table, as flags by number: for walks over a whole model.
template <typename Id>
class IdSet {
 public:
  /// False if it was there.
  bool insert(Id id) {
    if (id.value >= flags_.size()) flags_.resize(2 * std::size_t{id.value} + 1);
    const bool fresh = flags_[id.value] == 0;
    flags_[id.value] = 1;
    return fresh;
  }
  bool contains(Id id) const { return id.value < flags_.size() && flags_[id.value] != 0; }

 private:
  std::vector<std::uint8_t> flags_;
};

}  // namespace foreshard
