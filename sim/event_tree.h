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
/// one after the other. Setting a time costs log2(entities) comparisons at most and no allocation;
/// that of `busiest`, which stands beside the tree, nothing: where one rank is simulated, most
/// events are ends of kernels of its first stream.
class EventTree {
 public:
  explicit EventTree(std::uint32_t entities, std::uint32_t busiest = UINT32_MAX)
      : leaves_(std::bit_ceil(entities < 2 ? 2u : entities)), nodes_(2 * leaves_) {
    busiest_.entity = busiest;
    for (std::uint32_t i = 0; i < leaves_; ++i) nodes_[leaves_ + i].entity = i;
    for (std::uint32_t n = leaves_ - 1; n > 0; --n) nodes_[n] = nodes_[2 * n];
  }

  void set(std::uint32_t entity, std::int64_t time) {
    if (entity == busiest_.entity) {
      busiest_.time = time;
      return;
    }
    nodes_[leaves_ + entity].time = time;
    for (std::uint32_t n = leaves_ + entity; n > 1; n /= 2) {
      const Node &left = nodes_[n & ~1u], &right = nodes_[n | 1u];
      const Node best = right.time < left.time ? right : left;
      Node& winner = nodes_[n / 2];
      if (winner.time == best.time && winner.entity == best.entity) return;
      winner = best;
    }
  }

  std::uint32_t next() const { return first().entity; }
  std::int64_t next_time() const { return first().time; }

 private:
  struct Node {
    std::int64_t time = kNever;
    std::uint32_t entity = 0;
  };

  const Node& first() const {
    const Node& other = nodes_[1];
    const bool before = busiest_.time < other.time ||
                        (busiest_.time == other.time && busiest_.entity < other.entity);
    return before ? busiest_ : other;
  }

  std::uint32_t leaves_;
  Node busiest_;             ///< Its leaf stays at kNever.
  std::vector<Node> nodes_;  ///< The root at 1, the children of n at 2n and 2n + 1.
};

}  // namespace foreshard::sim
