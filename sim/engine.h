#pragma once

// The event loop. Three kinds of entities have a next event: transfers in flight (collectives and
// copies), streams with a running kernel, and host threads that wait. Events are served in the
// order (time, kind, number).
//
// A host thread does not need the device until it blocks, so it runs ahead: it issues instructions
// with their host times into the streams' queues and stops where it must wait: for an event, for
// room in the launch queue, or to learn how far the device has come at its present time (deferred
// frees). Device events are then served up to the moment that wakes it.
//
// Kernels run longer while transfers are active on their GPU (CostModel: interference); transfers
// that share links run slower (max-min fair). Both keep "work left" and are re-timed when the set
// of active transfers changes.

#include <cstdint>
#include <memory>
#include <vector>

#include "schedules/trace.h"
#include "sim/event_tree.h"
#include "sim/host_code.h"
#include "sim/layout.h"
#include "sim/memory_ledger.h"
#include "sim/options.h"
#include "sim/prepare.h"
#include "sim/sharing.h"

namespace foreshard::sim {

/// What made something start when it did: an operation that had to end first, the host thread, or
/// nothing known.
struct Cause {
  static constexpr std::uint32_t kHost = UINT32_MAX - 1, kUnknown = UINT32_MAX;
  std::uint32_t rank_class = 0;
  std::uint32_t op = kUnknown;
};

/// One finished device operation.
struct OpRecord {
  std::int64_t start = 0, end = 0;
  std::uint32_t instruction = 0;
  Cause cause;
  std::int16_t step = -1;
  StreamIndex stream = 0;
};

/// A stretch of host time in which the thread did not issue: it waited, or the allocator emptied
/// its cache.
struct HostBlock {
  enum class Kind : std::uint8_t { kWait, kQueueFull, kAllocator } kind = Kind::kWait;
  std::int64_t start = 0, end = 0;
  std::uint32_t instruction = 0;
  Cause cause;  ///< Operation whose end released it.
};

/// Everything kept of one simulated rank.
struct RankRecord {
  std::vector<OpRecord> ops;         ///< In order of their ends. Empty unless recorded.
  std::vector<HostBlock> blocks;     ///< In time order. Empty unless recorded.
  std::vector<Span> host_spans;      ///< Trace only.
  std::vector<MemorySample> memory;  ///< Trace only.
  struct StepEnd {
    std::int64_t begin = 0;  ///< Host time of its first instruction.
    std::int64_t end = 0;    ///< Host and all streams are done with it.
    Cause cause;             ///< What finished last.
  };
  std::vector<StepEnd> steps;
  std::vector<StepMemory> step_memory;
  std::vector<std::vector<bool>> reuse;      ///< ReuseAnswers::segments. Trace only.
  std::unique_ptr<StreamProgress> progress;  ///< Of the ledger.
  std::shared_ptr<MemoryLedger> ledger;      ///< Null if memory is not accounted for here.
  std::int64_t retries = 0;                  ///< Of the allocator, in all steps.
  std::int64_t origin = 0;                   ///< Time at which the first step began.
};

struct EngineInput {
  const Schedule* schedule = nullptr;
  const Layout* layout = nullptr;
  const CostModel* cost = nullptr;
  const SimulationOptions* options = nullptr;
  const std::vector<ProgramTiming>* programs = nullptr;
  const std::vector<std::shared_ptr<const CollectiveTable>>* collectives = nullptr;  ///< By class.
  const std::vector<std::shared_ptr<const HostCode>>* code = nullptr;                ///< By class.
  /// By class: what a memory pass found; null where the engine keeps a ledger itself, or none.
  const std::vector<const MemoryPass*>* memory = nullptr;
  std::vector<bool> ledger;  ///< By class: the engine runs the allocator.
  std::vector<bool> record;  ///< By class: keep operations.
  std::int32_t steps = 1;
};

struct EngineOutput {
  std::vector<RankRecord> ranks;  ///< By class.
  std::int64_t instructions = 0;
};

/// Runs the schedule to its end. InputError if it cannot end: a wait for an event that was never
/// recorded, ranks that disagree about a collective, a deadlock; the message names ranks and
/// instructions.
EngineOutput run_engine(EngineInput input);

}  // namespace foreshard::sim
