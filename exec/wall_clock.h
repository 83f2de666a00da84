#pragma once

#include <chrono>
#include <cstdint>

#include "core/units.h"

namespace foreshard {

/// The wall clock of one run, common to its ranks: reads as emulated time since the first step
/// began. All times inside the executor are of this clock; `scale` wall-clock seconds pass in one
/// of its seconds.
class WallClock {
 public:
  explicit WallClock(double scale) : scale_(scale) {}

  /// Sets the zero. Before the ranks' threads use it, or while they all wait.
  void start() { zero_ = std::chrono::steady_clock::now(); }
  Time now() const { return at(std::chrono::steady_clock::now()); }
  Time at(std::chrono::steady_clock::time_point instant) const {
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(instant - zero_);
    return Time(static_cast<std::int64_t>(static_cast<double>(ns.count()) * 1000.0 / scale_));
  }
  /// Wall-clock instant of a time of this clock.
  std::chrono::steady_clock::time_point wall(Time t) const {
    return zero_ + std::chrono::nanoseconds(
                       static_cast<std::int64_t>(static_cast<double>(t.value) * scale_ / 1000.0));
  }
  /// A span of wall-clock time in units of this clock.
  Time from_wall(Time wall) const {
    return Time(static_cast<std::int64_t>(static_cast<double>(wall.value) / scale_));
  }

 private:
  double scale_;
  std::chrono::steady_clock::time_point zero_ = std::chrono::steady_clock::now();
};

}  // namespace foreshard
