#include "schedules/planner/frameworks/framework.h"

#include <fmt/format.h>

#include "core/error.h"
#include "models/module_walk.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/id_set.h"
#include "schedules/planner/optimizer.h"

namespace foreshard {

std::unique_ptr<Framework> make_framework(const ParallelConfig& config) {
  const FrameworkRow& row = row_of(config.framework);
  if (!row.can_offload(config.offload)) {
    throw InputError(Issue{"", "offload",
                           fmt::format("{} cannot keep that in host memory", row.title),
                           "allowed: " + std::string(row.offload_hint)});
  }
  return row.make(config);
}

void Framework::update(Host& host, Optimizer* optimizer) {
  if (optimizer != nullptr) optimizer->step(host, local_parameters());
}

std::vector<ParameterId> parameter_order(const Model& model) {
  std::vector<ParameterId> order;
  order.reserve(model.parameters.size());
  IdSet<ParameterId> seen;
  for_each_module(model, ModuleId(0), [&](ModuleId m) {
    for (const OwnedParameter& p : model.at(m).parameters)
      if (seen.insert(p.id)) order.push_back(p.id);
  });
  return order;
}

void materialize_whole(Host& host, std::vector<LocalParameter>& locals) {
  const Model& model = host.model();
  RankProgram& program = host.program().program();
  program.parameters.resize(model.parameters.size());
  std::vector<bool> module_seen(model.modules.size());
  std::vector<SymTensor> replaced;  // Tied weights are made twice and tied again at the end.
  const auto make = [&](ParameterId id) {
    const ParameterDef& def = model.at(id);
    SymTensor t = host.empty(Shape(std::span<const std::int64_t>(def.shape)), def.dtype,
                             BufferCategory::kParameter, {}, host.program().intern(def.name));
    if (host.parameter(id)) {
      replaced.push_back(std::move(t));
      return;
    }
    host.launch(OpKind::kInitialize, {}, {t}, {static_cast<double>(id.value)});
    host.set_requires_grad(t, def.trainable);
    ParameterView& view = program.parameters[id.value];
    view.name = def.name;
    view.shape = def.shape;
    view.dtype = def.dtype;
    view.trainable = def.trainable;
    view.local = host.id_of(t);
    view.elements = def.numel();
    view.shard_dim = -1;
    host.set_parameter(id, std::move(t));
  };
  const auto visit = [&](const auto& self, ModuleId m) -> void {
    if (module_seen[m.value]) return;
    module_seen[m.value] = true;
    for (const ChildModule& c : model.at(m).children) self(self, c.id);
    for (const OwnedParameter& p : model.at(m).parameters) make(p.id);
    for (std::size_t b = 0; b < model.at(m).buffers.size(); ++b)
      host.buffer(model.at(m), static_cast<std::int64_t>(b));
  };
  visit(visit, ModuleId(0));
  replaced.clear();
  for (const ParameterId id : parameter_order(model)) {
    if (model.at(id).trainable) locals.push_back({id, host.parameter(id), model.at(id).numel()});
  }
}

}  // namespace foreshard
