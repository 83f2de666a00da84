#pragma once

// Explanations from the records of a finished run: where the step's time went, the critical path,
// what held memory.

#include "sim/engine.h"
#include "sim/result.h"

namespace foreshard::sim {

/// The explained step on one rank.
struct Window {
  std::uint32_t rank_class = 0;
  std::int64_t start = 0, end = 0;
  std::int32_t step = 0;
};

/// A run and what it was made of.
struct Run {
  const Schedule& schedule;
  const Layout& layout;
  const std::vector<ProgramTiming>& programs;
  const std::vector<std::shared_ptr<const CollectiveTable>>& collectives;
  const SimulationOptions& options;
  const EngineOutput& output;

  const ProgramTiming& timing(std::uint32_t rank_class) const {
    return programs[layout.classes[rank_class].program];
  }
};

/// Fills breakdown, communication, copies and critical path.
void explain_time(const Run& run, const Window& window, SimulationResult& result);

/// Fills memory: peaks of the rank that needs most, its live set at the peak, the first failure.
void explain_memory(const Run& run, const DeviceMemory& device, SimulationResult& result);

/// The timeline of all recorded ranks, with times from the start of the first step.
Trace make_trace(const Run& run);

}  // namespace foreshard::sim
