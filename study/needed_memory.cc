#include "study/needed_memory.h"

#include <algorithm>

#include "sim/hardware_cost.h"

namespace foreshard {
namespace {

constexpr std::int64_t kGrain = (1 << 30) / 20;

/// Does the job run on devices of so much memory?
class Trial {
 public:
  Trial(const Job& job, const Simulator& simulator)
      : job_(job), simulator_(simulator), cost_(cost_model_of(job, simulator.schedule())) {}

  bool runs(std::int64_t bytes) {
    SimulationOptions options;
    options.detail = Detail::kTimesOnly;
    options.allocator = job_.allocator;
    options.device_memory = Bytes(bytes);
    return simulator_.fits(*cost_, options);
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
  std::int64_t low = m.capacity.value, high = std::max(m.device_peak.value, low + kGrain);
  // The ends of segments may not fit into the very peak.
  for (int i = 0; i < 3 && !trial.runs(high); ++i) low = high, high += high / 20;
  if (low >= m.device_peak.value && !trial.runs(high)) return std::nullopt;
  while (high - low > std::max(kGrain, high / 100)) {
    const std::int64_t middle = low + (high - low) / 2;
    (trial.runs(middle) ? high : low) = middle;
  }
  return Bytes(high);
}

}  // namespace foreshard
