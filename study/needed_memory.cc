#include "study/needed_memory.h"

#include <algorithm>

#include "sim/hardware_cost.h"
#include "sim/simulator.h"

namespace foreshard {
namespace {

constexpr std::int64_t kGrain = (1 << 30) / 20;

/// Does the job run on devices of so much memory?
class Trial {
 public:
  Trial(const Job& job, const Schedule& schedule)
      : job_(job),
        simulator_(schedule),
        cost_(make_cost_model(make_cluster(job.hardware, static_cast<int>(schedule.world)),
                              job.cost_parameters())) {}

  bool runs(std::int64_t bytes) {
    SimulationOptions options;
    options.detail = Detail::kTimesOnly;
    options.allocator = job_.allocator;
    options.device_memory = Bytes(bytes);
    return simulator_.fits(*cost_, options);
  }

 private:
  const Job& job_;
  Simulator simulator_;
  std::unique_ptr<CostModel> cost_;
};

}  // namespace

std::optional<Bytes> needed_memory(const Job& job, const Evaluation& e) {
  const MemoryResult& m = e.result.memory;
  if (m.fits_device || m.capacity.value <= 0) return std::nullopt;
  Trial trial(job, e.schedule);
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
