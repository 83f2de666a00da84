#include "study/change_trial.h"

#include <utility>

#include "core/error.h"
#include "study/headroom.h"

namespace foreshard {
namespace {

/// At first sight: more steps than settled_options() has may yet fail. A job that needs retries in
/// those steps needs them, or fails, in more steps, too: settled_run() would find it borderline.
bool fits_at_once(const Job& job, const Simulator& simulator, const SimulationOptions& options) {
  const std::unique_ptr<CostModel> cost = cost_model_of(job, simulator.schedule());
  return simulator.fits_at_once(*cost, settled_options(job, options));
}

bool is_roomy(const MemoryResult& m) { return leaves_headroom(m.device_peak, m.capacity); }

}  // namespace

ChangeTrial::ChangeTrial(const Job& job, JobChange change)
    : change_(std::move(change)), changed_(job) {
  try {
    change_.apply(changed_);
  } catch (const InputError&) {
    refused_ = true;
  }
}

void ChangeTrial::plan() {
  if (!change_.replans || refused_) return;
  try {
    found_.schedule = plan_of(changed_);
    simulator_.emplace(found_.schedule);
  } catch (const InputError&) {
    refused_ = true;
  }
}

void ChangeTrial::run(const MemoryResult& base, const Simulator& own) {
  if (refused_) return;
  try {
    refused_ = !simulate(simulator_ ? *simulator_ : own, base);
  } catch (const InputError&) {
    refused_ = true;
  }
  simulator_.reset();
  found_.schedule = {};
}

/// False if it fits only with retries, or not and the job neither.
bool ChangeTrial::simulate(const Simulator& simulator, const MemoryResult& base) {
  SimulationOptions options;
  options.detail = Detail::kTimesOnly;
  if (base.simulated) options.device_memory = base.capacity;
  const bool must_fit = !base.fits;
  if (must_fit && !fits_at_once(changed_, simulator, options)) return false;
  found_.result = settled_run(changed_, simulator, options);
  tokens_per_second_per_gpu_ =
      tokens_per_second_per_gpu(simulator.schedule(), found_.result.step_time);
  const MemoryResult& memory = found_.result.memory;
  return !is_borderline(memory) && (memory.fits || !must_fit);
}

std::optional<Suggestion> ChangeTrial::suggestion(const Job& job, const Evaluation& base) const {
  if (refused_) return std::nullopt;
  const MemoryResult &own = base.result.memory, &memory = found_.result.memory;
  if (memory.fits && is_roomy(own) && !is_roomy(memory)) return std::nullopt;
  return Suggestion{change_.options,
                    found_.result.step_time,
                    memory.device_peak - own.device_peak,
                    tokens_per_second_per_gpu_,
                    found_.samples_per_second_per_gpu(changed_),
                    speedup(job, base, changed_, found_),
                    memory.fits};
}

}  // namespace foreshard
