#pragma once

// How much of a device advice leaves free, in one place: what tune chooses and what simulate
// suggests must not contradict each other.

#include "core/units.h"

namespace foreshard {

/// Of the device; a real run needs some that no plan shows (fragmentation of longer runs, longer
/// samples, libraries that load later), and predicted peaks are a few percent off.
inline constexpr double kHeadroom = 0.05;

inline bool leaves_headroom(Bytes device_peak, Bytes capacity) {
  return static_cast<double>(device_peak.value) <=
         (1 - kHeadroom) * static_cast<double>(capacity.value);
}

}  // namespace foreshard
