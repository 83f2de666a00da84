#pragma once

#include <deque>
#include <vector>

namespace foreshard {

/// Objects of one type that are made and dropped all the time; addresses are stable, memory goes when the pool goes.
template <typename T>
class Pool {
 public:
  T* take() {
    if (free_.empty()) return &objects_.emplace_back();
    T* const t = free_.back();
    free_.pop_back();
    return t;
  }
  /// `t` must be back in its default state.
  void give_back(T* t) { free_.push_back(t); }

 private:
  std::deque<T> objects_;
  std::vector<T*> free_;
};

}  // namespace foreshard
