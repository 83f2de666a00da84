#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/module_tree.h"
#include "study/runs_table.h"

namespace foreshard {

/// The row with the shape that its model's name stands for where the columns leave it out: presets
/// of minGPT in their trainer's own table.
MeasuredRun with_shape_of_name(MeasuredRun run);

/// The columns give the model's shape, or its name is one of the catalogue.
bool states_shape(const MeasuredRun& run);

/// The model that a row's columns describe, or its name where they are empty. What they leave out
/// goes to `assumptions`.
std::shared_ptr<const Model> model_of_run(const MeasuredRun& run,
                                          std::vector<std::string>& assumptions);

}  // namespace foreshard
