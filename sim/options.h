#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/units.h"
#include "memory/options.h"

namespace foreshard {

/// Differences between ranks and random variation; only unfolded simulation knows them. All factors
/// multiply time.
struct Variation {
  std::uint64_t seed = 1;
  /// Factor of each rank's kernels; absent entries are 1. Stragglers are factors above 1.
  std::vector<double> rank_compute;
  /// Factor of each rank's links: a collective takes as long as its slowest member's link asks, a
  /// copy as its own.
  std::vector<double> rank_link;
  /// Standard deviation of a factor drawn for each rank and step (log-normal, median 1): clocks,
  /// temperature.
  double step_sigma = 0;
  /// Standard deviation of a factor drawn for each kernel (log-normal, median 1).
  double kernel_sigma = 0;
  /// Standard deviation of a factor drawn for each collective (log-normal, median 1), equal on its
  /// ranks.
  double collective_sigma = 0;

  bool none() const {
    for (const auto* factors : {&rank_compute, &rank_link}) {
      for (const double f : *factors) {
        if (f != 1) return false;
      }
    }
    return step_sigma == 0 && kernel_sigma == 0 && collective_sigma == 0;
  }
};

/// Which ranks are simulated one by one.
enum class Folding : std::uint8_t {
  kAuto,      ///< Equal ranks once, unless `variation` makes ranks differ.
  kFolded,    ///< Equal ranks once.
  kUnfolded,  ///< Every rank.
};

/// Memory accounting.
enum class MemoryDetail : std::uint8_t {
  kNone,     ///< No allocator: fastest.
  kClasses,  ///< One rank of each program.
};

/// What is kept to explain the answer.
enum class Detail : std::uint8_t {
  kTimesOnly,  ///< Step times and memory peaks: fastest.
  kExplain,    ///< Also breakdown, communication table, critical path, live set.
  kTrace,      ///< Also the whole timeline and the memory curve.
};

struct SimulationOptions {
  /// Optimizer steps to simulate. 0: as many as the schedule writes out. More: its last step is
  /// repeated.
  std::int32_t steps = 0;
  Folding folding = Folding::kAuto;
  MemoryDetail memory = MemoryDetail::kClasses;
  Detail detail = Detail::kExplain;
  AllocatorOptions allocator;
  /// Memory of the device in place of the profile's.
  std::optional<Bytes> device_memory;
  /// One serial lane for each communicator, in host issue order (rule N-2). Off: collectives of one
  /// group on different streams may overlap.
  bool serialize_communicators = true;
  Variation variation;
};

}  // namespace foreshard
