#include "conformance/ddp_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "conformance/ddp_case.h"
#include "conformance/ddp_events.h"
#include "core/json.h"
#include "schedules/planner/frameworks/ddp.h"
#include "schedules/planner/host/host_refusal.h"
#include "schedules/planner/training_run.h"

namespace foreshard {
namespace {

/// The training script of a case and what the recordings note about it.
class DdpRun {
 public:
  explicit DdpRun(const Json& golden_case)
      : case_(read_ddp_case(golden_case)), events_(case_.spec.model) {}

  Json run() {
    Json result;
    try {
      setup();
      for (std::int64_t s = 0; s < case_.steps; ++s) step(s);
    } catch (const ddp::DdpError& refused) {
      return refusal(ddp::name_of(refused.refusal()));
    } catch (const HostRefusal&) {
      return refusal("RuntimeError");
    }
    result["params"] = describe_parameters();
    result["initial"] = std::move(initial_);
    result["events"] = std::move(events_.events());
    result["logged"] = describe_statistics();
    const DdpOptions& o = case_.config.ddp;
    if (o.comm_hook == DdpCommHook::kNone && !o.mixed_precision)
      result["buckets"] = events_.buckets();
    return result;
  }

 private:
  Json refusal(const char* type) {
    return {{"error", {{"type", type}}}, {"events", std::move(events_.events())}};
  }

  void setup() {
    const Model& model = case_.spec.model;
    auto framework = std::make_unique<ddp::Ddp>(case_.config);
    framework_ = framework.get();
    HostOptions options;
    options.sink = &events_;
    options.rank = case_.rank;
    run_ = std::make_unique<TrainingRun>(model, case_.config, options, std::move(framework));
    events_.attach(run_->host());
    for (std::uint32_t i = 0; i < model.modules.size(); ++i) {
      const Module& m = model.modules[i];
      if (!m.has_forward || m.parameters.empty()) continue;
      is_leaf(m) ? run_->host().trace_module(ModuleId(i))
                 : run_->host().trace_own_parameters(ModuleId(i));
    }
    run_->initialize();
    events_.add({{"ev", "ddp_ready"}});
    initial_ = describe_first_buckets();
    first_sizes_ = bucket_sizes();
  }

  void step(std::int64_t s) {
    events_.add({{"ev", "step_begin"}, {"step", s}});
    run_->begin_step();
    const bool several = case_.micro_batches.size() > 1;
    for (std::size_t m = 0; m < case_.micro_batches.size(); ++m) {
      const bool sync = case_.micro_batches[m];
      if (several) events_.add({{"ev", "micro_begin"}, {"micro", m}, {"sync", sync}});
      events_.begin_micro_batch(s, static_cast<std::int64_t>(m));
      framework_->begin_micro_batch(run_->host(), static_cast<std::int64_t>(m), sync);
      if (sync)
        logged_rebuild_ =
            framework_->has_rebuilt();  // Statistics are taken before a forward rebuilds.
      run_->load_inputs(static_cast<std::int64_t>(m));
      const SymTensor loss = run_->loss(run_->forward());
      run_->backward({&loss, 1});
    }
    events_.add({{"ev", "optimizer_step"}});
    run_->optimizer_step();
    run_->zero_grad();
  }

  std::string name(std::size_t parameter) const {
    return case_.spec.model.at(framework_->reduced_parameters()[parameter]).name;
  }

  Json describe_parameters() const {
    Json rows = Json::array();
    for (const ParameterId id : framework_->reduced_parameters()) {
      const ParameterDef& p = case_.spec.model.at(id);
      rows.push_back(
          {{"fqn", p.name}, {"numel", p.numel()}, {"dtype", std::string(name_of(p.dtype))}});
    }
    return rows;
  }

  Json describe_first_buckets() const {
    const ddp::Assignment& first = framework_->first_assignment();
    Json names = Json::array();
    for (const ddp::Indices& bucket : first.buckets) {
      Json list = Json::array();
      for (const std::size_t i : bucket) list.push_back(name(i));
      names.push_back(std::move(list));
    }
    return {{"limits", ddp::first_limits(case_.config.ddp)},
            {"buckets", names},
            {"bucket_limits", first.limits}};
  }

  /// Bytes of each bucket's parameters, in their own dtype.
  std::string bucket_sizes() const {
    std::vector<std::int64_t> sizes;
    for (const ddp::Bucket& b : framework_->buckets()) {
      std::int64_t bytes = 0;
      for (const std::size_t i : b.parameters) {
        const ParameterDef& p = case_.spec.model.at(framework_->reduced_parameters()[i]);
        bytes += p.numel() * size_of(p.dtype);
      }
      sizes.push_back(bytes);
    }
    return fmt::format("{}", fmt::join(sizes, ", "));
  }

  Json describe_statistics() const {
    Json logged;
    logged["bucket_sizes"] = first_sizes_;
    logged["bucket_cap_bytes"] = ddp::bucket_cap_bytes(case_.config.ddp);
    logged["has_rebuilt_buckets"] = logged_rebuild_ ? 1 : 0;
    if (!logged_rebuild_) return logged;
    logged["rebuilt_bucket_sizes"] = bucket_sizes();
    std::vector<std::string> indices;
    for (const ddp::Bucket& b : framework_->buckets())
      indices.push_back(fmt::format("{}", fmt::join(b.parameters, " ")));
    logged["rebuilt_per_bucket_param_indices"] = fmt::format("{}", fmt::join(indices, ", "));
    return logged;
  }

  DdpCase case_;
  DdpEvents events_;
  std::unique_ptr<TrainingRun> run_;
  ddp::Ddp* framework_ = nullptr;
  Json initial_;
  std::string first_sizes_;
  bool logged_rebuild_ = false;
};

}  // namespace

Json run_ddp_case(const Json& golden_case) { return DdpRun(golden_case).run(); }

}  // namespace foreshard
