#pragma once

// Predicts a schedule's time and memory on given hardware.

#include "schedules/schedule.h"
#include "sim/cost_model.h"
#include "sim/options.h"
#include "sim/result.h"

namespace foreshard {

/// Runs the schedule against the cost model. InputError if the schedule cannot run: indices outside
/// their tables, waits for events never recorded, ranks that disagree about a collective, deadlock.
/// Out of memory is an answer, not an error. Deterministic; safe to call from many threads with one
/// cost model.
SimulationResult simulate(const Schedule& schedule, const CostModel& cost,
                          const SimulationOptions& options = {});

}  // namespace foreshard
