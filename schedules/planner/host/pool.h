#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace foreshard {

/// Objects of one type that are made and dropped all the time; addresses are stable, memory goes
/// when the pool goes.
template <typename T>
class Pool {
 public:
  T* take() {
    if (!free_.empty()) {
      T* const t = free_.back();
      free_.pop_back();
      return t;
    }
    if (used_ == kChunk) {
      chunks_.push_back(std::make_unique<T[]>(kChunk));
      used_ = 0;
    }
    return &chunks_.back()[used_++];
  }
  /// `t` must be back in its default state.
  void give_back(T* t) { free_.push_back(t); }

 private:
  static constexpr std::size_t kChunk = 64;
  std::vector<std::unique_ptr<T[]>> chunks_;
  std::vector<T*> free_;
  std::size_t used_ = kChunk;
};

}  // namespace foreshard
