#include "study/evaluate.h"

#include "schedules/planner/framework_table.h"
#include "sim/hardware_cost.h"
#include "sim/simulator.h"

namespace foreshard {
namespace {

double utilisation(double flops, Time step, const Job& job) {
  const DType compute = job.config.precision.param.value_or(job.config.model_dtype);
  const Fact& peak = job.hardware.gpu.peak(compute, GpuProfile::Float32Math::kTf32);
  const double seconds = to_seconds(step) * static_cast<double>(job.gpus);
  if (!peak.known() || peak.value <= 0 || seconds <= 0) return 0;
  return flops / seconds / peak.value;
}

/// What DeepSpeed asks before it flattens the parameters (stage_1_and_2.py): is as much memory free
/// as the flat buffer takes? The whole model, context and communicator are on the device then.
bool flattens_on_host(const Job& job, const DeviceMemory& device) {
  const ParallelConfig& c = job.config;
  const DType dtype = c.precision.param.value_or(c.model_dtype);
  std::int64_t resident = 0, flat = 0;
  for (const ParameterDef& p : job.model->parameters) {
    const std::int64_t bytes = p.numel() * size_of(dtype);
    resident += bytes;
    if (p.trainable) flat += bytes;
  }
  const Bytes free = device.capacity - device.context - device.communicator - Bytes(resident);
  return free < Bytes(flat);
}

}  // namespace

double Evaluation::tokens_per_second_per_gpu() const {
  const double seconds = to_seconds(result.step_time) * static_cast<double>(schedule.world);
  return seconds <= 0 ? 0 : static_cast<double>(schedule.tokens_per_step) / seconds;
}

double Evaluation::model_flops_utilisation(const Job& job) const {
  return utilisation(static_cast<double>(schedule.model_flops_per_step.value), result.step_time,
                     job);
}

double Evaluation::hardware_flops_utilisation(const Job& job) const {
  return utilisation(result.executed_flops_per_step, result.step_time, job);
}

SimulationResult simulate_on(const Schedule& schedule, const HardwareProfile& hardware,
                             const SimulationOptions& options) {
  const Cluster cluster = make_cluster(hardware, static_cast<int>(schedule.world));
  return simulate(schedule, *make_cost_model(cluster), options);
}

Evaluation evaluate(const Job& job, const SimulationOptions& options) {
  PlanOptions plan_options;
  plan_options.executable = false;
  plan_options.steps = steady_steps(job.config);
  Evaluation out;
  ParallelConfig config = job.config;
  if (row_of(config.framework).flattens_model) {
    const Cluster cluster = make_cluster(job.hardware, static_cast<int>(config.world()));
    DeviceMemory device = make_cost_model(cluster, job.cost_parameters())->memory();
    device.capacity = options.device_memory.value_or(device.capacity);
    config.zero.flatten_on_host = flattens_on_host(job, device);
  }
  out.schedule = plan(*job.model, config, plan_options);
  const Cluster cluster = make_cluster(job.hardware, static_cast<int>(out.schedule.world));
  SimulationOptions with = options;
  with.allocator = job.allocator;
  out.result = simulate(out.schedule, cluster, with, job.cost_parameters());
  return out;
}

}  // namespace foreshard
