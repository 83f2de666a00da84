#pragma once

// What advice weighs, in one place: what tune chooses and what simulate suggests must not
// contradict each other.

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

}  // namespace foreshard
