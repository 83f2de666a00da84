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

/// Memory just after one request.
struct MemoryLevel {
  std::int64_t allocated = 0, reserved = 0, active = 0;
};

struct MemoryPass {
  std::unique_ptr<InstantProgress> progress;  ///< Of the ledger.
  std::shared_ptr<MemoryLedger> ledger;       ///< As it is after the last step that was run.
  std::vector<DriverCall> calls;              ///< In the order of the program.
  std::vector<StepMemory> step_memory;
  std::int64_t retries = 0;  ///< Of all steps.
  /// After each request, where they were asked for; steps that repeat another share its levels.
  std::vector<MemoryLevel> levels;
  std::vector<std::uint32_t> first_level;  ///< Of init, then of each step.
};

/// The allocs and frees of a program: all of it that a pass looks at.
class MemoryRequests {
 public:
  explicit MemoryRequests(const RankProgram& program);

  struct Request {
    std::uint32_t instruction;
    std::uint32_t buffer : 31;
    std::uint32_t free : 1;
  };
  static_assert(sizeof(Request) == 8);

  const RankProgram& program() const { return program_; }
  const std::vector<Request>& all() const { return all_; }
  Segment init() const { return init_; }  ///< Ranges of all().
  const std::vector<Segment>& steps() const { return steps_; }

 private:
  Segment append(const Segment& instructions);

  const RankProgram& program_;
  std::vector<Request> all_;
  Segment init_;
  std::vector<Segment> steps_;
};

/// What the communicators of the groups that a program uses take of the device.
Bytes communicator_memory(const RankProgram& program, std::size_t groups,
                          const DeviceMemory& device);

/// After which request nothing more is run.
enum class StopAt : std::uint8_t {
  kEnd,
  kFailure,  ///< The first that fails.
  kRetry,    ///< The first that is served only after cached memory was given back, or fails.
};

/// All that a pass depends on but for the program.
struct MemoryPassOptions {
  AllocatorOptions allocator;
  Bytes capacity;  ///< Of the device.
  Bytes taken;     ///< Of it, by context and communicators.
  std::int32_t steps = 1;
  std::int64_t rank = 0;  ///< Written into the answer.
  StopAt stop_at = StopAt::kEnd;
  bool levels = false;  ///< MemoryPass::levels are kept.
  bool operator==(const MemoryPassOptions&) const = default;
};

/// Runs allocs and frees of `steps` steps (as MemoryLedger::carry() repeats them).
MemoryPass run_memory(const MemoryRequests& requests, const MemoryPassOptions& options);

}  // namespace foreshard::sim
