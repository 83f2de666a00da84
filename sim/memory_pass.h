#pragma once

// Memory without a clock: where no block is recorded for another stream, the allocator's decisions
// follow from the order of requests alone, so they are made before time is simulated.

#include <cstdint>
#include <memory>
#include <vector>

#include "memory/segment_source.h"
#include "sim/cost_model.h"
#include "sim/memory_ledger.h"

namespace foreshard::sim {

/// An allocation for which the host calls the driver.
struct DriverCall {
  Moment at;
  std::int64_t allocs = 0, frees = 0;  ///< cudaMalloc and cudaFree.
  bool retry = false;                  ///< The device comes to rest first.
};

struct MemoryPass {
  std::unique_ptr<InstantProgress> progress;  ///< Of the ledger.
  std::unique_ptr<MemoryLedger> ledger;       ///< As it is after the last step.
  std::vector<DriverCall> calls;              ///< In the order of the program.
  std::vector<StepMemory> step_memory;
};

/// What the communicators of the groups that a program uses take of the device.
Bytes communicator_memory(const RankProgram& program, std::size_t groups,
                          const DeviceMemory& device);

/// Runs allocs and frees of the program's `steps` steps (as MemoryLedger::carry() repeats them).
/// `rank` is written into the answer. With `stop_at_failure` nothing after the first request that
/// fails is run.
MemoryPass run_memory(const RankProgram& program, const AllocatorOptions& options, Bytes capacity,
                      Bytes taken, std::int32_t steps, std::int64_t rank, bool stop_at_failure);

}  // namespace foreshard::sim
