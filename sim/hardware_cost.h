#pragma once

#include <memory>

#include "hwprofiles/profile.h"
#include "sim/cost/parameters.h"
#include "sim/cost_model.h"
#include "sim/simulator.h"

namespace foreshard {

/// The cost model of real hardware: kernels, host, collectives and links of a cluster. Keeps its
/// own copy of the profile. InputError if the profile lacks facts that every job needs.
std::unique_ptr<CostModel> make_cost_model(const Cluster& cluster,
                                           const CostParameters& parameters = {});

/// Simulates on real hardware.
SimulationResult simulate(const Schedule& schedule, const Cluster& cluster,
                          const SimulationOptions& options = {},
                          const CostParameters& parameters = {});

}  // namespace foreshard
