#include "study/planned_run.h"

#include <cmath>
#include <utility>

#include "schedules/planner/planner.h"
#include "sim/hardware_cost.h"
#include "study/evaluate.h"

namespace foreshard {

PlannedRun::PlannedRun(RunJob job) : job_(std::move(job)) {
  PlanOptions options;
  options.executable = false;
  options.ranks = {0};
  schedule_ = plan(*job_.job.model, job_.job.config, options);
}

CostParameters PlannedRun::parameters(const GpuProfile& gpu) const {
  CostParameters out = job_.parameters;
  const double bandwidth = gpu.memory_bandwidth.value * gpu.efficiency_or_usual("memory_bound");
  out.step.fixed += from_seconds(job_.extra_bytes / bandwidth);
  return out;
}

SimulationResult PlannedRun::simulate(const std::optional<CeilingFactors>& factors,
                                      MemoryDetail memory, Detail detail) const {
  HardwareProfile hardware = job_.job.hardware;
  if (factors) apply_ceilings(*factors, hardware.gpu);
  return simulate_on(hardware, memory, detail);
}

SimulationResult PlannedRun::simulate_on(const HardwareProfile& hardware, MemoryDetail memory,
                                         Detail detail) const {
  SimulationOptions options;
  options.detail = detail;
  options.memory = memory;
  if (memory != MemoryDetail::kNone) options.steps = kSettledSteps;
  return foreshard::simulate(schedule_, make_cluster(hardware, static_cast<int>(job_.job.gpus)),
                             options, parameters(hardware.gpu));
}

StepModel sensitivity_of(const PlannedRun& run) {
  const auto ceilings = training_ceilings();
  CeilingFactors factors(ceilings.size(), 0.0);
  const SimulationResult settled = run.simulate(factors);
  // Without retries memory does not touch time, and the allocator need not run again.
  const bool retries = settled.memory.retries > 0;
  const MemoryDetail memory = retries ? MemoryDetail::kClasses : MemoryDetail::kNone;
  StepModel out;
  out.step_s = to_seconds(retries ? settled.step_time : run.simulate(factors, memory).step_time);
  out.parts_s.assign(ceilings.size(), 0.0);
  for (std::size_t i = 0; i < ceilings.size(); ++i) {
    if (!concerns(ceilings[i], run.job().job.hardware.gpu)) continue;
    factors[i] = std::log1p(kFactorProbe) * ceilings[i].sense;
    out.parts_s[i] =
        (to_seconds(run.simulate(factors, memory).step_time) - out.step_s) / kFactorProbe;
    factors[i] = 0;
  }
  return out;
}

}  // namespace foreshard
