#include "models/freeze.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/error.h"

namespace foreshard {
namespace {

bool is_named(const std::string& path, const std::string& name) {
  if (path.size() <= name.size()) return path == name;
  return path.ends_with(name) && path[path.size() - name.size() - 1] == '.';
}

void freeze_below(Model& model, ModuleId id) {
  const Module& m = model.at(id);
  for (const OwnedParameter& p : m.parameters) model.parameters[p.id.value].trainable = false;
  for (const ChildModule& c : m.children) freeze_below(model, c.id);
}

/// Last parts of module paths: what people name.
std::vector<std::string> names_of(const Model& model) {
  std::set<std::string> names;
  for (const Module& m : model.modules)
    if (!m.name.empty()) names.insert(m.name.substr(m.name.rfind('.') + 1));
  return {names.begin(), names.end()};
}

}  // namespace

void freeze(Model& model, const std::vector<std::string>& names) {
  IssueList issues(model.name);
  for (const std::string& name : names) {
    bool found = false;
    for (std::uint32_t i = 1; i < model.modules.size(); ++i) {
      if (name.empty() || !is_named(model.modules[i].name, name)) continue;
      freeze_below(model, ModuleId(i));
      found = true;
    }
    if (found) continue;
    const std::string near = nearest_name(name, names_of(model));
    issues.add("freeze", fmt::format("no module is named \"{}\"", name),
               near.empty() ? "a module's path or its end: vision_tower, layers.0"
                            : fmt::format("the nearest name is \"{}\"", near));
  }
  issues.throw_if_any();
  if (model.trainable_count().value == 0)
    throw InputError(Issue{model.name, "freeze", "leaves nothing to train", "fewer modules"});
}

}  // namespace foreshard
