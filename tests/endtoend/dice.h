#pragma once

// Random choices of a property test: the same for a seed on every machine.

#include <cstdint>
#include <initializer_list>
#include <random>

namespace foreshard::fixture {

class Dice {
 public:
  explicit Dice(std::uint32_t seed) : engine_(seed * 2654435761u + 7) {}

  /// 0 to n - 1.
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint32_t>(n));
  }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  template <typename T>
  T of(std::initializer_list<T> choices) {
    return *(choices.begin() + below(static_cast<std::int64_t>(choices.size())));
  }

 private:
  std::mt19937 engine_;
};

}  // namespace foreshard::fixture
