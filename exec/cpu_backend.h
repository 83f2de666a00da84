#pragma once

#include <memory>

#include "exec/backend.h"
#include "exec/run.h"
#include "exec/run_control.h"
#include "exec/stream_worker.h"
#include "exec/transport/transport.h"
#include "exec/wall_clock.h"

namespace foreshard {

/// Counts of emulated work after Backend::finish().
struct PacingCounts {
  std::int64_t timed = 0, overruns = 0;
};

/// What the CPU ranks of one run share. Outlives the backends.
struct CpuBackendShared {
  RunControl& control;
  Transport& transport;
  const WallClock& clock;
  Pacing pacing;
};

/// One rank on the CPU: host memory, streams as ordered queues, kernels of exec/kernels. `counts`
/// is filled by finish().
std::unique_ptr<Backend> make_cpu_backend(const CpuBackendShared& shared, StreamMode mode,
                                          std::size_t streams, std::uint32_t events, Bytes capacity,
                                          PacingCounts& counts);

}  // namespace foreshard
