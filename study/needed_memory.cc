#include "study/needed_memory.h"

#include <algorithm>

#include "sim/hardware_cost.h"

namespace foreshard {
namespace {

/// Sizes are tried in tenths of a GiB, as answers print them: what is said is what was tried.
Bytes tenths(std::int64_t n) { return Bytes(n * (std::int64_t{1} << 30) / 10); }
std::int64_t in_tenths(Bytes bytes) { return bytes.value * 10 >> 30; }

/// Does the job run on devices of so much memory?
class Trial {
 public:
  Trial(const Job& job, const Simulator& simulator)
      : job_(job), simulator_(simulator), cost_(cost_model_of(job, simulator.schedule())) {}

  bool runs(std::int64_t size) {
    SimulationOptions options = settled_options(job_, {});
    options.detail = Detail::kTimesOnly;
    options.device_memory = tenths(size);
    return simulator_.fits(*cost_, options);
  }

  /// The smallest size above `low` up to which halving comes from `high`, within 1 %.
  std::int64_t smallest(std::int64_t low, std::int64_t high) {
    while (high - low > std::max<std::int64_t>(1, high / 100)) {
      const std::int64_t middle = low + (high - low) / 2;
      (runs(middle) ? high : low) = middle;
    }
    return high;
  }

 private:
  const Job& job_;
  const Simulator& simulator_;
  std::unique_ptr<CostModel> cost_;
};

}  // namespace

std::optional<Bytes> needed_memory(const Job& job, const Evaluation& e) {
  return needed_memory(job, Simulator(e.schedule), e.result.memory);
}

std::optional<Bytes> needed_memory(const Job& job, const Simulator& simulator,
                                   const MemoryResult& m) {
  if (m.fits_device || m.capacity.value <= 0) return std::nullopt;
  Trial trial(job, simulator);
  const std::int64_t low = in_tenths(m.capacity);
  std::int64_t enough = std::max(in_tenths(m.device_peak), low) + 1;
  // The ends of segments may not fit into the very peak.
  for (int i = 0; !trial.runs(enough); ++i) {
    if (i == 3) return std::nullopt;
    enough += enough / 20 + 1;
  }
  // More memory may do where less does not only up to a point (fragmentation): what is a little
  // larger must do, too.
  std::int64_t size = trial.smallest(low, enough);
  for (std::int64_t more = 2; size + more < enough;) {
    if (trial.runs(size + more)) {
      more *= 6;
    } else {
      size = trial.smallest(size + more, enough);
      more = 2;
    }
  }
  return tenths(size);
}

}  // namespace foreshard
