#include "schedules/planner/unit_facts.h"

#include <algorithm>
#include <map>
#include <string>

#include "schedules/planner/framework_table.h"
#include "schedules/planner/training_run.h"

namespace foreshard {
namespace {

/// "a + b"; "root" for the root itself; of several units of the same modules (one for each mesh or
/// dtype) with its number.
std::string name_of(const ShardUnit& unit) {
  std::string name;
  for (const std::string& module : unit.modules)
    name += (name.empty() ? "" : " + ") + (module.empty() ? "root" : module);
  const std::size_t number = unit.name.rfind('#');
  return number == std::string::npos ? name : name + unit.name.substr(number);
}

}  // namespace

std::vector<UnitFact> unit_facts(const Model& model, const ParallelConfig& config) {
  if (!row_of(config.framework).forms_units()) return {{"root", model.parameter_count()}};
  HostOptions options;
  options.executable = false;
  TrainingRun run(model, config, options);
  run.initialize();
  const std::vector<ShardUnit> units = run.take().units;

  std::map<std::string, std::size_t> position;
  for (const ModuleId m : modules_in_order(model))
    position.emplace(model.at(m).name, position.size());
  std::vector<std::pair<std::size_t, UnitFact>> placed;
  for (const ShardUnit& u : units)
    placed.push_back({position.at(u.modules.front()), {name_of(u), u.numel}});
  std::stable_sort(placed.begin(), placed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<UnitFact> facts;
  if (placed.empty() || placed[0].first != 0) facts.push_back({"root", Elements(0)});
  for (auto& [at, fact] : placed) facts.push_back(std::move(fact));
  return facts;
}

}  // namespace foreshard
