#include "conformance/zero_run.h"

#include <memory>

#include "conformance/zero_case.h"
#include "conformance/zero_events.h"
#include "core/json.h"
#include "schedules/planner/frameworks/zero12.h"
#include "schedules/planner/frameworks/zero3.h"
#include "schedules/planner/training_run.h"

namespace foreshard {
namespace {

Json names(const Model& model, const std::vector<ParameterId>& ids) {
  Json list = Json::array();
  for (const ParameterId id : ids) list.push_back(model.at(id).name);
  return list;
}

Json describe_groups(const Model& model, const zero::Zero12& f, std::int64_t world, DType dtype) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < f.groups().size(); ++i) {
    const zero::FlatGroup& g = f.groups()[i];
    Json row;
    row["order"] = names(model, g.order);
    row["numel"] = g.numel;
    row["flat_numel"] = g.partition * world;
    row["dtype"] = std::string(name_of(dtype));
    row["partition_numel"] = row["fp32_numel"] = g.partition;
    row["first_offset"] = f.own_first_offset(i);
    row["own_params"] = Json::array();
    row["owners"] = Json::object();
    for (const ParameterId id : g.order) {
      if (f.place(id).mine) row["own_params"].push_back(model.at(id).name);
      row["owners"][model.at(id).name] = f.owners(id);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

void describe_partitions(const Model& model, const zero::Zero3& f, DType dtype, Json& result) {
  result["params"] = Json::array();
  std::int64_t index = 0;
  for (const ParameterId id : parameter_order(model)) {
    const zero::PartitionedParameter& p = f.parameter(id);
    Json row;
    row["fqn"] = model.at(id).name;
    row["id"] = index++;
    row["numel"] = p.numel;
    row["partition_numel"] = p.partition;
    row["persistent"] = p.persistent;
    row["trainable"] = p.trainable;
    row["dtype"] = std::string(name_of(dtype));
    result["params"].push_back(std::move(row));
  }
  result["sub_groups"] = Json::array();
  result["sub_group_numel"] = Json::array();
  for (const std::vector<ParameterId>& g : f.sub_groups()) {
    std::int64_t numel = 0;
    for (const ParameterId id : g) numel += f.parameter(id).partition;
    result["sub_groups"].push_back(names(model, g));
    result["sub_group_numel"].push_back(numel);
  }
}

void train_step(TrainingRun& run, ZeroEvents& events, const ZeroCase& c) {
  run.begin_step();
  for (std::int64_t m = 0; m < c.config.accumulate; ++m) {
    const bool last = m + 1 == c.config.accumulate;
    if (c.config.accumulate > 1) events.add({{"ev", "micro_begin"}, {"micro", m}, {"sync", last}});
    run.load_inputs(m);
    run.framework().begin_micro_batch(run.host(), m, last);
    const SymTensor loss = run.loss(run.forward());
    events.add({{"ev", "backward_begin"}});
    run.backward({&loss, 1});
    run.framework().end_micro_batch(run.host());
  }
  events.add({{"ev", "optimizer_step"}});
  run.optimizer_step();
}

/// The recordings' end of backward comes after the reductions and before the engine's timer.
void mark_backward_ends(Json& events) {
  Json marked = Json::array();
  bool open = false;
  for (Json& e : events) {
    const std::string kind = e.at("ev");
    const Json cause = e.value("cause", Json());
    const bool timer = cause == "throughput_timer" || cause == kEngineTimers;
    if (cause == kEngineTimers) e.erase("cause");
    if (open && (timer || kind == "optimizer_step" || kind == "micro_begin")) {
      marked.push_back({{"ev", "backward_end"}});
      open = false;
    }
    open = open || kind == "backward_begin";
    marked.push_back(std::move(e));
  }
  events = std::move(marked);
}

}  // namespace

Json run_zero_case(const Json& golden_case) {
  ZeroCase c = read_zero_case(golden_case);
  const Model& model = c.spec.model;
  ZeroEvents events(model);
  c.extras.observer = &events;
  auto owned = zero::make_zero(c.config, c.extras);
  Framework* const framework = owned.get();
  HostOptions options;
  options.sink = &events;
  options.rank = c.rank;
  TrainingRun run(model, c.config, options, std::move(owned));
  for (std::uint32_t i = 0; i < model.modules.size(); ++i) {
    const Module& m = model.modules[i];
    if (!m.has_forward || m.parameters.empty()) continue;
    is_leaf(m) ? run.host().trace_module(ModuleId(i))
               : run.host().trace_own_parameters(ModuleId(i));
  }
  Json result;
  try {
    run.initialize();
    events.add({{"ev", "engine_ready"}});
    for (std::int64_t s = 0; s < c.steps; ++s) {
      events.add({{"ev", "step_begin"}, {"step", s}});
      train_step(run, events, c);
    }
  } catch (const zero::ZeroError& error) {
    result["error"] = {{"type", error.type()}, {"message", error.message()}};
    result["events"] = std::move(events.events());
    return result;
  }
  mark_backward_ends(events.events());
  result["events"] = std::move(events.events());
  const DType dtype = *c.config.precision.param;
  if (const auto* flat = dynamic_cast<const zero::Zero12*>(framework)) {
    result["groups"] = describe_groups(model, *flat, c.config.world(), dtype);
    result["stage"] = c.config.framework == FrameworkKind::kZero1 ? 1 : 2;
  } else {
    describe_partitions(model, dynamic_cast<const zero::Zero3&>(*framework), dtype, result);
    result["stage"] = 3;
  }
  return result;
}

}  // namespace foreshard
