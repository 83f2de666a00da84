#pragma once

#include <cstdint>
#include <vector>

#include "models/module_tree.h"

namespace foreshard {

/// Calls visit(id) of `root` and every module under it, parents first, each object once:
/// named_modules order.
template <typename Visit>
void for_each_module(const Model& model, ModuleId root, Visit&& visit) {
  std::vector<std::uint8_t> seen(model.modules.size());
  const auto go = [&](const auto& self, ModuleId m) -> void {
    seen[m.value] = 1;
    visit(m);
    for (const ChildModule& c : model.at(m).children)
      if (seen[c.id.value] == 0) self(self, c.id);
  };
  go(go, root);
}

}  // namespace foreshard
