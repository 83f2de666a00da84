#include "conformance/fsdp1_run.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "conformance/fsdp1_case.h"
#include "conformance/fsdp1_events.h"
#include "conformance/fsdp1_units.h"
#include "core/json.h"
#include "schedules/planner/frameworks/fsdp1.h"
#include "schedules/planner/frameworks/fsdp1_error.h"
#include "schedules/planner/frameworks/fsdp1_wrap.h"
#include "schedules/planner/host/host_refusal.h"
#include "schedules/planner/training_run.h"

namespace foreshard {
namespace {

/// The training script of a case.
class Fsdp1Run {
 public:
  explicit Fsdp1Run(const Json& golden_case) : case_(read_fsdp1_case(golden_case)) {}

  Json run() {
    Json result, error;
    try {
      units_ = fsdp1::wrap_units(case_.spec.model, case_.config);
      if (case_.config.checkpoint_outside_units) keep_checkpoints_of_units();
      setup();
      for (std::int64_t s = 0; s < case_.steps; ++s) step(s);
    } catch (const fsdp1::Fsdp1Error& refused) {
      error["type"] = name_of(refused.refusal());
    } catch (const HostRefusal&) {
      error["type"] = "RuntimeError";
    }
    result["events"] = std::move(events_.events());
    if (error.is_null()) {
      result["units"] = describe_fsdp1_units(case_.spec.model, units_);
    } else {
      result["error"] = std::move(error);
    }
    return result;
  }

 private:
  /// The recordings put a checkpoint around FSDP instances only: a module that is none gets none.
  void keep_checkpoints_of_units() {
    std::erase_if(case_.config.checkpoint_modules, [&](const std::string& name) {
      return std::none_of(units_.begin(), units_.end(),
                          [&](const fsdp1::Unit& u) { return u.name == name; });
    });
  }

  void setup() {
    HostOptions options;
    options.sink = &events_;
    options.rank = case_.rank;
    run_ = std::make_unique<TrainingRun>(case_.spec.model, case_.config, options,
                                         fsdp1::make_fsdp1(case_.config, {&events_, true}));
    const Model& model = case_.spec.model;
    for (std::uint32_t i = 0; i < model.modules.size(); ++i) {
      const Module& m = model.modules[i];
      if (!m.has_forward || m.parameters.empty()) continue;
      is_leaf(m) ? run_->host().trace_module(ModuleId(i))
                 : run_->host().trace_own_parameters(ModuleId(i));
    }
    run_->initialize();
  }

  void step(std::int64_t s) {
    events_.begin_step(s);
    run_->begin_step();
    for (std::size_t m = 0; m < case_.micro_batches.size(); ++m) {
      const bool sync = case_.micro_batches[m];
      if (case_.micro_batches.size() > 1) {
        events_.add({{"ev", "micro_begin"}, {"micro", m}, {"sync", sync}});
      }
      micro_batch(static_cast<std::int64_t>(m), sync);
    }
    if (case_.config.clip) {
      events_.add({{"ev", "clip_grad_norm"}});
      run_->clip();
    }
    events_.add({{"ev", "optimizer_step"}});
    run_->optimizer_step();
    run_->zero_grad();
  }

  void micro_batch(std::int64_t index, bool sync) {
    run_->load_inputs(index);
    run_->framework().begin_micro_batch(run_->host(), index, sync);
    const SymTensor loss = run_->loss(run_->forward());
    if (!loss->requires_grad) throw HostRefusal("loss", "nothing in it requires a gradient");
    events_.add({{"ev", "backward_begin"}});
    run_->backward({&loss, 1});
    run_->framework().end_micro_batch(run_->host());
    events_.add({{"ev", "backward_end"}});
  }

  Fsdp1Case case_;
  std::vector<fsdp1::Unit> units_;
  Fsdp1Events events_{case_.spec.model, units_};
  std::unique_ptr<TrainingRun> run_;
};

}  // namespace

Json run_fsdp1_case(const Json& golden_case) { return Fsdp1Run(golden_case).run(); }

Json fsdp1_tables(const Json& golden_case) {
  const Fsdp1Case c = read_fsdp1_case(golden_case);
  Json tables = Json::object();
  try {
    tables["units"] = describe_fsdp1_units(c.spec.model, fsdp1::wrap_units(c.spec.model, c.config));
  } catch (const fsdp1::Fsdp1Error&) {
    return tables;  // The run says it as an error.
  }
  return tables;
}

}  // namespace foreshard
