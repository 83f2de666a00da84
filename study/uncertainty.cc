#include "study/uncertainty.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "hwprofiles/calibration.h"
#include "schedules/planner/framework_table.h"
#include "sim/cost/kernel_cost.h"
#include "sim/hardware_cost.h"

namespace foreshard {
namespace {

constexpr double kP90 = 1.2816;  ///< Of the standard normal distribution.
constexpr double kMeasuredBusSd = 0.25;

/// Relative standard deviation of a number whose profile does not say: by kind, judged.
double usual_sd(FactKind kind) {
  switch (kind) {
    case FactKind::kDatasheet:
      return 0.01;
    case FactKind::kMeasured:
    case FactKind::kCalibrated:
      return 0.05;
    case FactKind::kRecalled:
    case FactKind::kAssumed:
      break;
  }
  return 0.15;
}

void add_efficiencies(GpuProfile& gpu, std::vector<UncertainNumber>& list) {
  UncertainNumber attention{"gpu.efficiency.attention_*", {}, -1};
  for (auto& [key, fact] : gpu.efficiency) {
    if (key.starts_with("attention_") && !key.ends_with("_half_length"))
      attention.facts.push_back(&fact);
  }
  for (const auto& [key, slower] :
       std::initializer_list<std::pair<const char*, int>>{{"matmul_training", -1},
                                                          {"memory_bound", -1},
                                                          {"fp8_matmul", -1},
                                                          {"overlap_slowdown", 1},
                                                          {"speed_spread", 1}}) {
    const auto found = gpu.efficiency.find(key);
    if (found != gpu.efficiency.end())
      list.push_back({std::string("gpu.efficiency.") + key, {&found->second}, slower});
  }
  if (!attention.facts.empty()) list.push_back(std::move(attention));
}

/// The efficiency of 8-bit products costs no other kernel time.
bool multiplies_in_8_bits(const Schedule& schedule) {
  for (const RankProgram& p : schedule.programs) {
    for (const Launch& l : p.launches)
      if (l.dtype == DType::kFloat8E4M3 || l.dtype == DType::kFloat8E5M2) return true;
  }
  return false;
}

/// What one machine differs from another of its type, whatever the constants.
UncertainInput machine_spread(const GpuProfile& gpu) {
  const Fact* spread = gpu.find_efficiency("machine_spread");
  const double sd = gpu.efficiency_or_usual("machine_spread");
  return {"machine to machine", sd, sd,
          spread != nullptr ? spread->source : "as on A100 and H100, where it was calibrated"};
}

}  // namespace

std::vector<std::string> outside_calibration(const Job& job) {
  std::vector<std::string> outside;
  const GpuProfile& gpu = job.hardware.gpu;
  const ParallelConfig& c = job.config;
  const Fact* ceiling = gpu.find_efficiency("matmul_training");
  if (ceiling == nullptr || ceiling->kind != FactKind::kCalibrated) {
    outside.push_back(fmt::format("no training run on {} was calibrated against",
                                  gpu.title.empty() ? gpu.name : gpu.title));
  }
  const std::optional<CalibrationCoverage> seen = training_coverage();
  if (!seen) return outside;
  const auto check = [&](const char* what, std::int64_t value,
                         const CalibrationCoverage::Range& range) {
    if (value < range.least || value > range.most)
      outside.push_back(
          fmt::format("{} {}: calibrated from {} to {}", value, what, range.least, range.most));
  };
  check("GPUs", job.gpus, seen->gpus);
  if (job.has_tokens()) {
    check("tokens in a sequence", c.sequence, seen->sequence);
    check("tokens of a GPU and micro-batch", c.micro_batch * c.sequence, seen->tokens);
  } else {
    outside.emplace_back("a model without tokens");
  }
  check("million parameters", job.model->parameter_count().value / 1'000'000,
        seen->million_parameters);
  if (c.float8 != Float8Kind::kNone) outside.push_back("8-bit products");
  if (c.offload != OffloadKind::kNone) outside.push_back("offload");
  const FrameworkRow& framework = row_of(c.framework);
  if (!framework.calibrated) outside.emplace_back(framework.title);
  return outside;
}

std::vector<UncertainNumber> uncertain_numbers(const Job& job, const Schedule& schedule,
                                               HardwareProfile& profile) {
  std::vector<UncertainNumber> list;
  add_efficiencies(profile.gpu, list);
  NodeProfile& node = profile.node;
  NetworkProfile& network = profile.network;
  if (job.gpus > 1 && node.fabric != FabricKind::kPcie)
    list.push_back({"gpu.nvlink_planning", {&profile.gpu.nvlink_planning}, -1});
  if (job.gpus > 1 && node.fabric == FabricKind::kPcie)
    list.push_back({"node.peer_bandwidth", {&node.peer_bandwidth}, -1});
  if (make_cluster(job.hardware, static_cast<int>(job.gpus)).nodes > 1) {
    list.push_back({"network.efficiency", {&network.efficiency}, -1});
    list.push_back({"network.latency", {&network.latency, &network.call_overhead}, 1});
  }
  list.push_back({"node.host_cpu_factor", {&node.host_cpu_factor}, 1});
  const bool copies = std::any_of(schedule.programs.begin(), schedule.programs.end(),
                                  [](const RankProgram& p) { return p.copies.size() > 8; });
  if (copies)
    list.push_back({"node.host_to_device", {&node.host_to_device, &node.device_to_host}, -1});
  if (!multiplies_in_8_bits(schedule))
    std::erase_if(list,
                  [](const UncertainNumber& n) { return n.path == "gpu.efficiency.fp8_matmul"; });
  for (UncertainNumber& n : list) std::erase_if(n.facts, [](const Fact* f) { return !f->known(); });
  std::erase_if(list, [](const UncertainNumber& n) { return n.facts.empty(); });
  for (UncertainNumber& n : list) {
    const Fact& first = *n.facts[0];
    const bool stated = !std::isnan(first.uncertainty);
    n.sd = stated ? first.uncertainty : usual_sd(first.kind);
    n.source = stated ? first.source : fmt::format("usual for {} numbers", name_of(first.kind));
  }
  return list;
}

double machine_spread_of(const GpuProfile& gpu) { return machine_spread(gpu).sd; }

UncertaintyStudy::UncertaintyStudy(const Job& job, const Simulator& simulator,
                                   const CostParameters& parameters)
    : job_(job), simulator_(simulator) {
  HardwareProfile worse = job.hardware;
  for (const UncertainNumber& n : uncertain_numbers(job, simulator.schedule(), worse)) {
    std::vector<double> before;
    for (const Fact* f : n.facts) before.push_back(f->value);
    for (Fact* f : n.facts) f->value *= std::exp(n.slower * n.sd);
    runs_.push_back({{n.path, n.sd, 0, n.source}, worse, parameters, Time(0)});
    for (std::size_t i = 0; i < n.facts.size(); ++i) n.facts[i]->value = before[i];
  }
  add_measured_bus(parameters);
  if (!runs_.empty()) runs_.insert(runs_.begin(), {{}, job.hardware, parameters, Time(0)});
}

/// Bandwidths that a run measured itself stand for the network of that day at one size of message
/// only; no number of the profile moves them.
void UncertaintyStudy::add_measured_bus(const CostParameters& parameters) {
  if (parameters.links.measured.all_gather <= 0) return;
  CostParameters worse = parameters;
  for (double* bus : {&worse.links.measured.all_gather, &worse.links.measured.reduce_scatter,
                      &worse.links.measured.all_reduce})
    *bus *= std::exp(-kMeasuredBusSd);
  runs_.push_back({{"measured bus bandwidth", kMeasuredBusSd, 0,
                    "1.15 to 1.37 between the sizes it may have been measured at"},
                   job_.hardware,
                   worse,
                   Time(0)});
}

/// Without the allocator: its calls cost all of them the same.
void UncertaintyStudy::run(std::size_t index) {
  Run& r = runs_[index];
  SimulationOptions options;
  options.detail = Detail::kTimesOnly;
  options.memory = MemoryDetail::kNone;
  const Cluster cluster = make_cluster(r.hardware, static_cast<int>(job_.gpus));
  r.step = simulator_.run(*make_cost_model(cluster, r.parameters), options).step_time;
}

StepUncertainty UncertaintyStudy::finish(Time step) const {
  StepUncertainty out;
  const double predicted = to_seconds(step);
  for (std::size_t i = 1; i < runs_.size(); ++i) {
    UncertainInput input = runs_[i].input;
    input.effect = (to_seconds(runs_[i].step) - to_seconds(runs_[0].step)) / predicted;
    if (input.effect > 0) out.inputs.push_back(std::move(input));
  }
  out.inputs.push_back(machine_spread(job_.hardware.gpu));
  std::stable_sort(
      out.inputs.begin(), out.inputs.end(),
      [](const UncertainInput& a, const UncertainInput& b) { return a.effect > b.effect; });
  double square = 0;
  for (const UncertainInput& u : out.inputs) square += u.effect * u.effect;
  out.sd = std::sqrt(square);
  const double least = out.inputs[0].effect / 10;
  std::erase_if(out.inputs, [&](const UncertainInput& u) { return u.effect < least; });
  out.p10 = from_seconds(predicted * std::exp(-kP90 * out.sd));
  out.p90 = from_seconds(predicted * std::exp(kP90 * out.sd));
  out.outside = outside_calibration(job_);
  return out;
}

StepUncertainty uncertainty_of(const Job& job, const Schedule& schedule, Time step) {
  return uncertainty_of(job, schedule, step, job.cost_parameters());
}

StepUncertainty uncertainty_of(const Job& job, const Schedule& schedule, Time step,
                               const CostParameters& parameters) {
  const Simulator simulator(schedule);
  UncertaintyStudy study(job, simulator, parameters);
  for (std::size_t i = 0; i < study.runs(); ++i) study.run(i);
  return study.finish(step);
}

bool within_p10_p90(double predicted, double measured, double sd) {
  return std::fabs(std::log(predicted / measured)) <= kP90 * sd;
}

}  // namespace foreshard
