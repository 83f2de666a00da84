#pragma once

#include <vector>

#include "core/json_fwd.h"
#include "models/module_tree.h"
#include "schedules/planner/frameworks/fsdp1_unit.h"

namespace foreshard {

/// `units` of the recordings: FSDP instances in the order of root.modules() with their flat
/// parameters.
Json describe_fsdp1_units(const Model& model, const std::vector<fsdp1::Unit>& units);

}  // namespace foreshard
