#pragma once

// The fluid job on SimGrid (S4U, Debian package libsimgrid-dev), each run in a process of its own
// because SimGrid keeps one engine a process.

#include "bench/fluid_job.h"

namespace foreshard::bench {

struct ForeignRun {
  double step_s = 0;  ///< Simulated.
  double wall_s = 0;  ///< Of the simulation alone, without setting up.
};

/// `rounds`: a collective as ranks - 1 dependent rounds of small flows in place of one fluid flow.
ForeignRun run_simgrid(const FluidJob& job, int ranks, bool rounds);

}  // namespace foreshard::bench
