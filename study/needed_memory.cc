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
      : simulator_(simulator),
        cost_(cost_model_of(job, simulator.schedule())),
        options_(settled_options(job, {})) {
    options_.detail = Detail::kTimesOnly;
  }

  /// The largest size that is certainly too small.
  std::int64_t too_small() const {
    const Bytes least = simulator_.least_memory(*cost_, options_);
    return in_tenths(least - Bytes(1));
  }

  bool runs(std::int64_t size) {
    options_.device_memory = tenths(size);
    return simulator_.fit(*cost_, options_) != Fit::kNo;
  }

  /// A size above `low`, which is too small, on which the job runs, within 1 % of one on which it
  /// does not.
  std::int64_t smallest_above(std::int64_t low) {
    std::int64_t step = std::max<std::int64_t>(1, low / 100);
    while (!runs(low + step)) {
      low += step;
      step *= 2;
    }
    std::int64_t high = low + step;
    while (high - low > std::max<std::int64_t>(1, high / 100)) {
      const std::int64_t middle = low + (high - low) / 2;
      (runs(middle) ? high : low) = middle;
    }
    return high;
  }

 private:
  const Simulator& simulator_;
  std::unique_ptr<CostModel> cost_;
  SimulationOptions options_;
};

}  // namespace

std::optional<Bytes> needed_memory(const Job& job, const Evaluation& e) {
  return needed_memory(job, Simulator(e.schedule), e.result.memory);
}

std::optional<Bytes> needed_memory(const Job& job, const Simulator& simulator,
                                   const MemoryResult& m) {
  if (m.fits_device || m.capacity.value <= 0) return std::nullopt;
  Trial trial(job, simulator);
  std::int64_t size = trial.smallest_above(std::max(in_tenths(m.capacity), trial.too_small()));
  // More memory may do where less does not only up to a point (fragmentation): what is a little
  // larger must do, too.
  for (std::int64_t more = 2; more <= size / 10;) {
    if (trial.runs(size + more)) {
      more *= 6;
    } else {
      size = trial.smallest_above(size + more);
      more = 2;
    }
  }
  return tenths(size);
}

}  // namespace foreshard
