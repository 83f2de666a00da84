#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

namespace foreshard {

/// Objects of one type that are made and dropped all the time; addresses are stable, memory goes
/// when the pool goes. `kHoldMemory`: they own memory outside of pools, so that they are destroyed
/// with it; all are before any of them gives its own memory back.
template <typename T, bool kHoldMemory = true>
class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    if constexpr (kHoldMemory) {
      for (std::size_t c = 0; c < chunks_.size(); ++c) {
        const std::size_t used = c + 1 < chunks_.size() ? kChunk : used_;
        for (std::size_t i = 0; i < used; ++i)
          std::launder(reinterpret_cast<T*>(chunks_[c][i].bytes))->~T();
      }
    }
  }

  T* take() {
    if (!free_.empty()) {
      T* const t = free_.back();
      free_.pop_back();
      return t;
    }
    if (used_ == kChunk) {
      const std::size_t all = (chunks_.size() + 1) * kChunk;
      if (free_.capacity() < all) free_.reserve(2 * all);
      chunks_.push_back(std::make_unique_for_overwrite<Room[]>(kChunk));
      used_ = 0;
    }
    return new (chunks_.back()[used_++].bytes) T;
  }
  /// `t` must be back in its default state. There is room for all objects: destructors end here.
  void give_back(T* t) noexcept { free_.push_back(t); }

 private:
  static constexpr std::size_t kChunk = 64;
  struct Room {
    alignas(T) std::byte bytes[sizeof(T)];
  };
  std::vector<std::unique_ptr<Room[]>> chunks_;
  std::vector<T*> free_;
  std::size_t used_ = kChunk;  ///< Of the last chunk.
};

}  // namespace foreshard
