#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/module_tree.h"
#include "study/runs_table.h"

namespace foreshard {

/// The model that a row's columns describe. What they leave out goes to `assumptions`.
std::shared_ptr<const Model> model_of_run(const MeasuredRun& run,
                                          std::vector<std::string>& assumptions);

}  // namespace foreshard
