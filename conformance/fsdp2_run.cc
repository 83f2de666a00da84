#include "conformance/fsdp2_run.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "conformance/fsdp2_case.h"
#include "conformance/fsdp2_events.h"
#include "conformance/fsdp2_script.h"
#include "conformance/fsdp2_units.h"
#include "core/json.h"
#include "schedules/planner/frameworks/fsdp2.h"
#include "schedules/planner/frameworks/fsdp2_error.h"
#include "schedules/planner/host/host_refusal.h"
#include "schedules/planner/training_run.h"

namespace foreshard {
namespace {

using fsdp2::Fsdp2Error;
using fsdp2::Refusal;

/// The training script of a case.
class Fsdp2Run {
 public:
  explicit Fsdp2Run(const Json& golden_case)
      : json_(golden_case), case_(read_fsdp2_case(golden_case)), events_(case_.spec.model) {}

  Json run() {
    Json error;
    try {
      setup();
      steps();
    } catch (const Fsdp2Error& refused) {
      error["stage"] = stage_;
      error["type"] = name_of(refused.refusal());
      error["message"] = refused.issues().front().message;
    } catch (const HostRefusal& refused) {
      error["stage"] = stage_;
      error["type"] = "RuntimeError";
      error["message"] = refused.what();
    }
    Json result;
    result["events"] = std::move(events_.events());
    result["units"] = describe_units(*framework_, case_.spec.model, facts_);
    result["buffers"] = describe_buffers(case_.spec.model, case_.config.checkpoint_modules);
    result["unsharded"] =
        stage_ == "done" ? Json(framework_->unsharded_parameters()) : Json::array();
    if (!error.is_null()) result["error"] = std::move(error);
    return result;
  }

 private:
  void setup() {
    stage_ = "wrap";
    auto framework = std::make_unique<fsdp2::Fsdp2>(case_.config, case_.extras);
    framework_ = framework.get();
    HostOptions options;
    options.sink = &events_;
    options.rank = case_.rank;
    run_ = std::make_unique<TrainingRun>(case_.spec.model, case_.config, options,
                                         std::move(framework));
    events_.attach(*framework_, run_->host());
    trace_modules();
    run_->initialize();
    stage_ = events_.phase = "modes";
    events_.phase = "calls";
    Fsdp2Script script(*framework_, *run_, events_, case_.spec.model);
    for (const Json& call : json_.value("calls", Json::array())) script.apply(call);
    script.apply_prefetch(json_.value("prefetch", Json::object()));
    stage_ = "optimizer_init";
    facts_.optimizer = json_.value("optimizer", "adamw");
    for (const LocalParameter& p : framework_->local_parameters()) {
      if (p.local->requires_grad && !is_unsharded(p.id)) trained_.push_back(p);
    }
    has_optimizer_ = facts_.optimizer != "none" && !framework_->local_parameters().empty();
  }

  /// A parameter that is whole when the optimizer is made: the optimizer then holds the wrong
  /// tensor.
  bool is_unsharded(ParameterId id) const {
    for (const fsdp2::ParamGroup* group : framework_->wrapping().groups()) {
      for (const fsdp2::ShardedParameter& p : group->parameters) {
        if (p.id == id) return group->sharded == fsdp2::ShardedState::kUnsharded;
      }
    }
    return false;
  }

  void trace_modules() {
    std::set<std::string> named(case_.config.checkpoint_modules.begin(),
                                case_.config.checkpoint_modules.end());
    for (const WrapCall& call : case_.config.calls)
      named.insert(call.modules.begin(), call.modules.end());
    const Model& model = case_.spec.model;
    for (std::uint32_t i = 0; i < model.modules.size(); ++i) {
      const Module& m = model.modules[i];
      if (m.has_forward && (!m.parameters.empty() || named.count(m.name) != 0))
        run_->host().trace_module(ModuleId(i));
    }
  }

  void steps() {
    Json micros = json_.value("micro_batches", Json::array());
    if (micros.empty()) micros.push_back(Json::object());
    const std::int64_t count = json_.value("steps", std::int64_t{1});
    for (std::int64_t s = 0; s < count; ++s) {
      events_.step = s;
      events_.add({{"ev", "step_begin"}, {"step", s}});
      run_->begin_step();
      for (std::size_t m = 0; m < micros.size(); ++m) {
        events_.micro = static_cast<std::int64_t>(m);
        if (micros.size() > 1) events_.add({{"ev", "micro_begin"}, {"micro", m}});
        micro_batch(micros[m]);
      }
      finish_step();
    }
    stage_ = "done";
  }

  void micro_batch(const Json& micro) {
    stage_ = events_.phase = "calls";
    Fsdp2Script script(*framework_, *run_, events_, case_.spec.model);
    for (const Json& call : micro.value("calls", Json::array())) script.apply(call);
    stage_ = events_.phase = "forward";
    run_->load_inputs(0);
    std::vector<SymTensor> losses;
    for (std::int64_t n = micro.value("forwards", std::int64_t{1}); n > 0; --n) {
      losses.push_back(forward_loss());
      if (!facts_.reshard_captured) facts_.capture_reshard(*framework_);
    }
    stage_ = events_.phase = "backward";
    events_.add({{"ev", "backward_begin"}});
    if (micro.value("separate_backwards", false)) {
      for (SymTensor& loss : losses) backward({&loss, 1});
    } else {
      backward(losses);
    }
    events_.add({{"ev", "backward_end"}});
    stage_ = events_.phase = "calls";
    for (const Json& call : micro.value("after", Json::array())) script.apply(call);
  }

  SymTensor forward_loss() {
    std::vector<SymTensor> outputs = run_->forward();
    if (json_.contains("loss_outputs")) {
      std::vector<SymTensor> used;
      for (const Json& i : json_.at("loss_outputs")) used.push_back(outputs[i.get<std::size_t>()]);
      outputs = std::move(used);
    }
    return run_->loss(std::move(outputs));
  }

  void backward(std::span<const SymTensor> losses) {
    if (std::none_of(losses.begin(), losses.end(),
                     [](const SymTensor& l) { return l->requires_grad; })) {
      throw Fsdp2Error(Refusal::kRuntimeError, "loss", "nothing in it requires a gradient");
    }
    run_->backward(losses);
  }

  void finish_step() {
    events_.phase = "optimizer";
    stage_ = "clip";
    if (json_.value("clip_grad_norm", false)) {
      events_.add({{"ev", "clip_grad_norm"}});
      run_->clip();
    }
    stage_ = "optimizer";
    if (has_optimizer_) {
      events_.add({{"ev", "optimizer_step"}});
      for (const LocalParameter& p : trained_) {
        if (p.local->grad) facts_.optimized.insert(p.id);
      }
      if (json_.value("zero_grad_set_to_none", true)) {
        for (const LocalParameter& p : trained_) p.local->grad.reset();
      }
    }
    if (json_.value("eval_forward_between_steps", false)) {
      stage_ = "eval_forward";
      events_.phase = "eval";
      events_.add({{"ev", "eval_begin"}});
      run_->evaluate();
      events_.add({{"ev", "eval_end"}});
    }
  }

  const Json& json_;
  Fsdp2Case case_;
  Fsdp2Events events_;
  std::unique_ptr<TrainingRun> run_;
  fsdp2::Fsdp2* framework_ = nullptr;
  std::vector<LocalParameter> trained_;
  UnitFacts facts_;
  bool has_optimizer_ = false;
  std::string stage_;
};

}  // namespace

Json run_fsdp2_case(const Json& golden_case) { return Fsdp2Run(golden_case).run(); }

}  // namespace foreshard
