#pragma once

// What advice weighs, in one place: what tune chooses and what simulate suggests must not
// contradict each other.

#include <cstddef>
#include <utility>
#include <vector>

#include "core/units.h"

namespace foreshard {

/// Of the device; a real run needs some that no plan shows (fragmentation of longer runs, longer
/// samples, libraries that load later), and predicted peaks are a few percent off.
inline constexpr double kHeadroom = 0.05;

/// Within this of the fastest, less memory counts for more. Less than what suggestions of simulate
/// are worth (2 %): those must not undo the choice.
inline constexpr double kCloseEnough = 1.01;

inline bool leaves_headroom(Bytes device_peak, Bytes capacity) {
  return static_cast<double>(device_peak.value) <=
         (1 - kHeadroom) * static_cast<double>(capacity.value);
}

/// What is chosen of rows that were simulated.
struct Choice {
  std::size_t chosen = 0;   ///< The number of rows if none fits.
  std::size_t fastest = 0;  ///< Of those that may be chosen.
  bool roomy = false;       ///< With headroom.
};

/// Rows have `step`, `memory` (device peak), `allocated`, `retries` (of the allocator, in all
/// steps) and `fits`. With headroom: the fastest, or what needs least memory within kCloseEnough of
/// it. Without, of those without retries or else of whatever fits: what allocates least (what is
/// reserved ends at the device's memory). Of equal ones the fastest.
template <typename Row>
Choice choose_row(const std::vector<Row>& rows, Bytes capacity) {
  const auto rank = [&](const Row& r) {
    if (!r.fits) return 0;
    return r.retries > 0 ? 1 : leaves_headroom(r.memory, capacity) ? 3 : 2;
  };
  int best = 0;
  for (const Row& r : rows) best = rank(r) > best ? rank(r) : best;
  Choice out{rows.size(), rows.size(), best == 3};
  if (best == 0) return out;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rank(rows[i]) == best &&
        (out.fastest == rows.size() || rows[i].step < rows[out.fastest].step))
      out.fastest = i;
  out.chosen = out.fastest;
  const auto need = [&](const Row& r) {
    return std::pair(out.roomy ? r.memory : r.allocated, r.step);
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool close = !out.roomy || rows[i].step / rows[out.fastest].step <= kCloseEnough;
    if (rank(rows[i]) == best && close && need(rows[i]) < need(rows[out.chosen])) out.chosen = i;
  }
  return out;
}

}  // namespace foreshard
