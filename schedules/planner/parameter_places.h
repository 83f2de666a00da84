#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/module_tree.h"

namespace foreshard {

/// Numbers the places of a model's parameters (Module::parameters of every module): for tables by
/// place.
class ParameterPlaces {
 public:
  explicit ParameterPlaces(const Model& model) : model_(model) {
    first_.reserve(model.modules.size());
    for (const Module& m : model.modules) {
      first_.push_back(static_cast<std::uint32_t>(count_));
      count_ += m.parameters.size();
    }
  }

  std::size_t count() const { return count_; }
  /// `p` is an entry of the module's own list.
  std::size_t number(ModuleId module, const OwnedParameter& p) const {
    return first_[module.value] +
           static_cast<std::size_t>(&p - model_.at(module).parameters.data());
  }

 private:
  const Model& model_;
  std::vector<std::uint32_t> first_;  ///< By module.
  std::size_t count_ = 0;
};

}  // namespace foreshard
