#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace foreshard::sim {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// The next event of many entities: a winner tree over their times. Equal times are served by
/// entity number, so that the order of events is (time, class, number) when classes are numbered
/// one after the other. Setting a time costs log2(entities) comparisons at most and no allocation.
class EventTree {
 public:
  explicit EventTree(std::uint32_t entities)
      : leaves_(std::bit_ceil(entities < 2 ? 2u : entities)),
        time_(leaves_, kNever),
        winner_(2 * leaves_) {
    for (std::uint32_t i = 0; i < leaves_; ++i) winner_[leaves_ + i] = i;
    for (std::uint32_t n = leaves_ - 1; n > 0; --n) winner_[n] = winner_[2 * n];
  }

  void set(std::uint32_t entity, std::int64_t time) {
    time_[entity] = time;
    for (std::uint32_t n = (leaves_ + entity) / 2; n > 0; n /= 2) {
      const std::uint32_t left = winner_[2 * n], right = winner_[2 * n + 1];
      const std::uint32_t best = time_[right] < time_[left] ? right : left;
      if (best == winner_[n] && best != entity) return;
      winner_[n] = best;
    }
  }

  std::int64_t time(std::uint32_t entity) const { return time_[entity]; }
  std::uint32_t next() const { return winner_[1]; }
  std::int64_t next_time() const { return time_[winner_[1]]; }

 private:
  std::uint32_t leaves_;
  std::vector<std::int64_t> time_;
  std::vector<std::uint32_t> winner_;
};

}  // namespace foreshard::sim
