#include "schedules/planner/root_split.h"

#include <map>
#include <set>

#include "schedules/planner/wrap_policy.h"

namespace foreshard {
namespace {

void add_subtree(const Model& model, ModuleId module, std::set<std::uint32_t>& out) {
  if (!out.insert(module.value).second) return;
  for (const ChildModule& child : model.at(module).children) add_subtree(model, child.id, out);
}

}  // namespace

std::optional<std::string> tie_across_root_split(const Model& model, const WrapPolicy& policy) {
  if (!splits_root(policy)) return std::nullopt;
  std::set<std::uint32_t> split;
  for (const ModuleId m : model.roles.embeddings) add_subtree(model, m, split);
  for (const ModuleId m : model.roles.tail) add_subtree(model, m, split);
  std::map<std::uint32_t, std::string> inside;  // Parameter to its name there.
  for (const std::uint32_t m : split)
    for (const OwnedParameter& p : model.at(ModuleId(m)).parameters)
      inside.emplace(p.id.value, model.at(ModuleId(m)).name + "." + p.name);
  for (std::uint32_t m = 0; m < model.modules.size(); ++m) {
    if (split.count(m) != 0) continue;
    for (const OwnedParameter& p : model.at(ModuleId(m)).parameters)
      if (const auto it = inside.find(p.id.value); it != inside.end())
        return it->second + ", " + model.at(ModuleId(m)).name;
  }
  return std::nullopt;
}

}  // namespace foreshard
