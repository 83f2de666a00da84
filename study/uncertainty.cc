#include "study/uncertainty.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

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
    case FactKind::kAssumed:
      break;
  }
  return 0.15;
}

/// A number of the profile that may be wrong, and which way is slower.
struct Candidate {
  std::string path;
  std::vector<Fact*> facts;  ///< Moved together.
  int slower;                ///< -1: a smaller value is slower.
};

class Study {
 public:
  Study(const Job& job, const Schedule& schedule, Time step, const CostParameters& parameters)
      : job_(job),
        schedule_(schedule),
        parameters_(parameters),
        simulator_(schedule),
        step_(to_seconds(step)),
        worse_(job.hardware) {}

  StepUncertainty run() {
    for (Candidate& c : candidates()) measure(c);
    add_measured_bus();
    add_machine_spread();
    finish();
    return out_;
  }

 private:
  void add_efficiencies(std::vector<Candidate>& list) {
    Candidate attention{"gpu.efficiency.attention_*", {}, -1};
    for (auto& [key, fact] : worse_.gpu.efficiency) {
      if (key.starts_with("attention_") && !key.ends_with("_half_length"))
        attention.facts.push_back(&fact);
    }
    for (const auto& [key, slower] :
         std::initializer_list<std::pair<const char*, int>>{{"matmul_training", -1},
                                                            {"memory_bound", -1},
                                                            {"fp8_matmul", -1},
                                                            {"overlap_slowdown", 1},
                                                            {"speed_spread", 1}}) {
      const auto found = worse_.gpu.efficiency.find(key);
      if (found != worse_.gpu.efficiency.end())
        list.push_back({std::string("gpu.efficiency.") + key, {&found->second}, slower});
    }
    if (!attention.facts.empty()) list.push_back(std::move(attention));
  }

  std::vector<Candidate> candidates() {
    std::vector<Candidate> list;
    add_efficiencies(list);
    NodeProfile& node = worse_.node;
    NetworkProfile& network = worse_.network;
    const Cluster cluster = make_cluster(job_.hardware, static_cast<int>(job_.gpus));
    if (job_.gpus > 1 && node.fabric != FabricKind::kPcie)
      list.push_back({"gpu.nvlink_planning", {&worse_.gpu.nvlink_planning}, -1});
    if (job_.gpus > 1 && node.fabric == FabricKind::kPcie)
      list.push_back({"node.peer_bandwidth", {&node.peer_bandwidth}, -1});
    if (cluster.nodes > 1) {
      list.push_back({"network.efficiency", {&network.efficiency}, -1});
      list.push_back({"network.latency", {&network.latency, &network.call_overhead}, 1});
    }
    list.push_back({"node.host_cpu_factor", {&node.host_cpu_factor}, 1});
    const bool copies = std::any_of(schedule_.programs.begin(), schedule_.programs.end(),
                                    [](const RankProgram& p) { return p.copies.size() > 8; });
    if (copies)
      list.push_back({"node.host_to_device", {&node.host_to_device, &node.device_to_host}, -1});
    return list;
  }

  double step_of(const HardwareProfile& hardware) { return step_of(hardware, parameters_); }
  double step_of(const HardwareProfile& hardware, const CostParameters& parameters) {
    SimulationOptions options;
    options.detail = Detail::kTimesOnly;
    options.memory = MemoryDetail::kNone;
    const Cluster cluster = make_cluster(hardware, static_cast<int>(job_.gpus));
    const auto cost = make_cost_model(cluster, parameters);
    return to_seconds(simulator_.run(*cost, options).step_time);
  }

  void measure(Candidate& c) {
    std::erase_if(c.facts, [](const Fact* f) { return !f->known(); });
    if (c.facts.empty()) return;
    const Fact first = *c.facts[0];
    const bool stated = !std::isnan(first.uncertainty);
    const double sd = stated ? first.uncertainty : usual_sd(first.kind);
    std::vector<double> before;
    for (Fact* f : c.facts) {
      before.push_back(f->value);
      f->value *= std::exp(c.slower * sd);
    }
    const double step = step_of(worse_);
    for (std::size_t i = 0; i < c.facts.size(); ++i) c.facts[i]->value = before[i];
    if (!base_) base_ = step_of(job_.hardware);  // Without the allocator, as the others.
    const double effect = (step - *base_) / step_;
    if (effect > 0) {
      out_.inputs.push_back(
          {c.path, sd, effect,
           stated ? first.source : fmt::format("usual for {} numbers", name_of(first.kind))});
    }
  }

  /// Bandwidths that a run measured itself stand for the network of that day at one size of message
  /// only; no number of the profile moves them.
  void add_measured_bus() {
    if (parameters_.links.measured.all_gather <= 0) return;
    CostParameters worse = parameters_;
    for (double* bus : {&worse.links.measured.all_gather, &worse.links.measured.reduce_scatter,
                        &worse.links.measured.all_reduce})
      *bus *= std::exp(-kMeasuredBusSd);
    if (!base_) base_ = step_of(job_.hardware);
    const double effect = (step_of(job_.hardware, worse) - *base_) / step_;
    if (effect > 0)
      out_.inputs.push_back({"measured bus bandwidth", kMeasuredBusSd, effect,
                             "1.25 to 1.56 between the sizes it may have been measured at"});
  }

  /// What one machine differs from another of its type, whatever the constants.
  void add_machine_spread() {
    const Fact* spread = job_.hardware.gpu.find_efficiency("machine_spread");
    const double sd = spread != nullptr ? spread->value : 0.06;
    out_.inputs.push_back(
        {"machine to machine", sd, sd,
         spread != nullptr ? spread->source : "as on A100 and H100, where it was calibrated"});
  }

  void finish() {
    std::stable_sort(
        out_.inputs.begin(), out_.inputs.end(),
        [](const UncertainInput& a, const UncertainInput& b) { return a.effect > b.effect; });
    double square = 0;
    for (const UncertainInput& u : out_.inputs) square += u.effect * u.effect;
    out_.sd = std::sqrt(square);
    const double least = out_.inputs.empty() ? 0 : out_.inputs[0].effect / 10;
    std::erase_if(out_.inputs, [&](const UncertainInput& u) { return u.effect < least; });
    out_.p10 = from_seconds(step_ * std::exp(-kP90 * out_.sd));
    out_.p90 = from_seconds(step_ * std::exp(kP90 * out_.sd));
    find_outside();
  }

  void find_outside() {
    const GpuProfile& gpu = job_.hardware.gpu;
    const ParallelConfig& c = job_.config;
    const Fact* ceiling = gpu.find_efficiency("matmul_training");
    if (ceiling == nullptr || ceiling->kind != FactKind::kCalibrated) {
      out_.outside.push_back(fmt::format("no training run on {} was calibrated against",
                                         gpu.title.empty() ? gpu.name : gpu.title));
    }
    const std::optional<CalibrationCoverage> seen = training_coverage();
    if (!seen) return;
    const auto check = [&](const char* what, std::int64_t value,
                           const CalibrationCoverage::Range& range) {
      if (value < range.least || value > range.most)
        out_.outside.push_back(
            fmt::format("{} {}: calibrated from {} to {}", value, what, range.least, range.most));
    };
    check("GPUs", job_.gpus, seen->gpus);
    if (job_.has_tokens()) {
      check("tokens in a sequence", c.sequence, seen->sequence);
      check("tokens of a GPU and micro-batch", c.micro_batch * c.sequence, seen->tokens);
    } else {
      out_.outside.emplace_back("a model without tokens");
    }
    check("million parameters", job_.model->parameter_count().value / 1'000'000,
          seen->million_parameters);
    if (c.float8 != Float8Kind::kNone) out_.outside.push_back("8-bit products");
    if (c.offload != OffloadKind::kNone) out_.outside.push_back("offload");
    const FrameworkRow& framework = row_of(c.framework);
    if (!framework.calibrated) out_.outside.emplace_back(framework.title);
  }

  const Job& job_;
  const Schedule& schedule_;
  const CostParameters& parameters_;
  Simulator simulator_;
  double step_;
  HardwareProfile worse_;
  std::optional<double> base_;
  StepUncertainty out_;
};

}  // namespace

StepUncertainty uncertainty_of(const Job& job, const Schedule& schedule, Time step) {
  return uncertainty_of(job, schedule, step, job.cost_parameters());
}

StepUncertainty uncertainty_of(const Job& job, const Schedule& schedule, Time step,
                               const CostParameters& parameters) {
  return Study(job, schedule, step, parameters).run();
}

bool within_p10_p90(double predicted, double measured, double sd) {
  return std::fabs(std::log(predicted / measured)) <= kP90 * sd;
}

}  // namespace foreshard
