#pragma once

#include <vector>

#include "models/describe.h"
#include "schedules/planner/config.h"

namespace foreshard {

/// The units that the framework of `config` forms when it initialises the model: what a plan has.
/// Root first (0 elements if nothing is left for it), then in the order of their first modules.
/// Frameworks that form no units have none but the root, with everything. InputError where the
/// framework refuses the wrapping.
std::vector<UnitFact> unit_facts(const Model& model, const ParallelConfig& config);

}  // namespace foreshard
