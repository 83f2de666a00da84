#include "study/evaluate.h"

#include <algorithm>

#include "sim/hardware_cost.h"

namespace foreshard {
namespace {

constexpr Bytes kNoLimit(std::int64_t{1} << 50);

double utilisation(double flops, Time step, const Job& job) {
  const DType compute = compute_dtype(job.config);
  using Math = GpuProfile::Float32Math;
  const Fact& peak = job.hardware.gpu.peak(compute, job.tf32 ? Math::kTf32 : Math::kIeee);
  const double seconds = to_seconds(step) * static_cast<double>(job.gpus);
  if (!peak.known() || peak.value <= 0 || seconds <= 0) return 0;
  return flops / seconds / peak.value;
}

}  // namespace

double tokens_per_second_per_gpu(const Schedule& schedule, Time step) {
  const double seconds = to_seconds(step) * static_cast<double>(schedule.world);
  return seconds <= 0 ? 0 : static_cast<double>(schedule.tokens_per_step) / seconds;
}

double Evaluation::tokens_per_second_per_gpu() const {
  return foreshard::tokens_per_second_per_gpu(schedule, result.step_time);
}

double Evaluation::samples_per_second_per_gpu(const Job& job) const {
  const double seconds = to_seconds(result.step_time);
  const ParallelConfig& c = job.config;
  return seconds <= 0 ? 0 : static_cast<double>(c.micro_batch * c.accumulate) / seconds;
}

double speedup(const Job& job_before, const Evaluation& before, const Job& job_after,
               const Evaluation& after) {
  const double was = before.samples_per_second_per_gpu(job_before);
  return was <= 0 ? 0 : after.samples_per_second_per_gpu(job_after) / was;
}

std::string peak_name(const Job& job) {
  const DType compute = compute_dtype(job.config);
  if (compute != DType::kFloat32) return short_dtype(compute);
  return job.tf32 ? "TF32" : "fp32";
}

bool is_borderline(const MemoryResult& memory) { return memory.fits && memory.retries_total > 0; }

double Evaluation::model_flops_utilisation(const Job& job) const {
  return utilisation(schedule.model_flops_per_step, result.step_time, job);
}

double Evaluation::hardware_flops_utilisation(const Job& job) const {
  return utilisation(result.executed_flops_per_step, result.step_time, job);
}

SimulationResult simulate_on(const Schedule& schedule, const HardwareProfile& hardware,
                             const SimulationOptions& options) {
  const Cluster cluster = make_cluster(hardware, static_cast<int>(schedule.world));
  return simulate(schedule, *make_cost_model(cluster), options);
}

SimulationOptions settled_options(const Job& job, const SimulationOptions& options) {
  SimulationOptions out = options;
  out.allocator = job.allocator;
  if (out.steps == 0 && out.memory != MemoryDetail::kNone)
    out.steps = std::max(kSettledSteps, static_cast<std::int32_t>(steady_steps(job.config)));
  return out;
}

Schedule plan_of(const Job& job) {
  PlanOptions options;
  options.executable = false;
  options.steps = steady_steps(job.config);
  return plan(*job.model, job.config, options);
}

std::unique_ptr<CostModel> cost_model_of(const Job& job, const Schedule& schedule) {
  return make_cost_model(make_cluster(job.hardware, static_cast<int>(schedule.world)),
                         job.cost_parameters());
}

Evaluation evaluate(const Job& job, const SimulationOptions& options) {
  Evaluation out;
  out.schedule = plan_of(job);
  out.result = settled_run(job, Simulator(out.schedule), options);
  return out;
}

OwnMemory settled_memory(const Job& job, const Simulator& simulator,
                         const SimulationOptions& options) {
  const std::unique_ptr<CostModel> cost = cost_model_of(job, simulator.schedule());
  OwnMemory out;
  out.options = settled_options(job, options);
  const auto find = [&] {
    if (simulator.memory_is_timeless()) {
      out.memory = simulator.memory(*cost, out.options);
    } else {
      out.result = simulator.run(*cost, out.options);
      out.memory = out.result->memory;
    }
  };
  find();
  if (is_borderline(out.memory) && options.steps == 0) {
    out.options.steps = std::max(out.options.steps, kPatientSteps);
    find();
  }
  return out;
}

SimulationResult settled_run(const Job& job, const Simulator& simulator,
                             const SimulationOptions& options) {
  return settled_run(job, simulator, settled_memory(job, simulator, options));
}

SimulationResult settled_run(const Job& job, const Simulator& simulator, OwnMemory own) {
  const bool fails = own.memory.simulated && !own.memory.fits_device;
  if (fails) own.options.device_memory = kNoLimit;
  if (!fails && own.result) return *std::move(own.result);
  const std::unique_ptr<CostModel> cost = cost_model_of(job, simulator.schedule());
  SimulationResult out = simulator.run(*cost, own.options);
  if (!fails) return out;
  out.memory.capacity = own.memory.capacity;
  out.memory.retries = 0;  // There is no last step.
  out.memory.retries_total = own.memory.retries_total;
  out.memory.out_of_memory = own.memory.out_of_memory;
  out.memory.fits = out.memory.fits_device = false;
  return out;
}

}  // namespace foreshard
