#pragma once

// The answer of a simulation. Times of "the step" concern the last simulated step, from the end of
// the step before it to its own end on the slowest rank.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "schedules/trace.h"
#include "sim/cost_model.h"
#include "sim/critical_resource.h"

namespace foreshard {

/// Where the step goes on the explained rank; the five parts add up to the step exactly.
struct Breakdown {
  Time compute;    ///< Kernels of the compute stream, other than the optimizer's.
  Time optimizer;  ///< Kernels of the compute stream in the phases clip, optimizer and zero_grad.
  Time exposed_communication;  ///< The compute stream stands still for a collective, a copy or
                               ///< their packing kernels.
  Time exposed_host;  ///< The compute stream has nothing to do yet: the host thread is behind.
  Time idle;          ///< Anything else: waiting for other ranks, the ends of the step.
  /// Part of `compute` and `optimizer` that transfers (SMs, memory bandwidth) and kernels of other
  /// streams (memory bandwidth) cost.
  Time interference;

  Time total() const { return compute + optimizer + exposed_communication + exposed_host + idle; }
};

/// All collectives of one kind over one group in the step.
struct CommunicationRow {
  CollectiveKind kind = CollectiveKind::kAllGather;
  std::string group;
  std::int64_t group_size = 1;
  std::int64_t count = 0;
  Bytes bytes;     ///< Sum of Collective::bytes.
  Time busy;       ///< Sum of durations.
  Time exposed;    ///< Part of it for which the compute stream stood still.
  Time stretched;  ///< Part of `busy` that sharing links with other transfers costs.
  Link bottleneck = Link::kNvLink;
};

/// Copies between host and device in the step.
struct CopyRow {
  CopyDirection direction = CopyDirection::kHostToDevice;
  std::int64_t count = 0;
  Bytes bytes;
  Time busy, exposed;
};

/// Time of the critical path that one resource holds, added up.
struct CriticalPathRow {
  CriticalResource resource;
  Time time;
};

/// One piece of the critical path, in time order without gaps.
struct CriticalPathSegment {
  std::uint32_t resource = 0;  ///< Index into SimulationResult::critical_path.
  std::int64_t rank = 0;
  std::uint32_t instruction = UINT32_MAX;  ///< That holds it; none for host and idle time.
  Time start, end;
};

/// Bytes that one owner holds at the peak.
struct Owner {
  BufferCategory category = BufferCategory::kPersistent;
  std::string unit;  ///< "" if none.
  Bytes bytes;       ///< As handed out by the allocator.
};

/// Where in the program something happened.
struct Place {
  std::int64_t rank = 0;
  std::int32_t step = -1;  ///< -1: initialisation.
  std::uint32_t instruction = UINT32_MAX;
  Phase phase = Phase::kOther;
  std::string module;
  std::string unit;
};

struct OutOfMemoryReport {
  std::string text;  ///< The allocator's own words.
  Bytes requested, allocated, reserved, capacity;
  BufferCategory category = BufferCategory::kPersistent;
  Place at;
};

/// Memory of the rank that needs most.
struct MemoryResult {
  bool simulated = false;
  Bytes allocated_peak;  ///< Blocks in the program's hands, over all steps.
  Bytes reserved_peak;   ///< Segments of the allocator, over all steps.
  Bytes device_peak;     ///< reserved_peak + context + communicators.
  Bytes capacity;        ///< Of the device.
  Bytes context, communicators;
  Bytes host_peak;           ///< Pinned and pageable host memory of the rank.
  Bytes host_node_peak;      ///< Of all ranks on the fullest node.
  Bytes host_capacity;       ///< Main memory of a node; 0: unknown, then never too small.
  /// Allocator retries of the rank that has most, which need not be the fullest: in the last step,
  /// and in all.
  std::int64_t retries = 0, retries_total = 0;
  /// False if a request failed. The simulation then goes on with unlimited memory, so that peaks
  /// say what is needed.
  bool fits_device = true;
  bool fits_host() const { return host_capacity.value <= 0 || host_node_peak <= host_capacity; }
  bool fits = true;  ///< Device and host.
  std::optional<OutOfMemoryReport> out_of_memory;
  Place peak_at;
  std::vector<Owner> owners;  ///< At the peak, largest first.
  /// The same by module: `unit` names the block (or module) that made the buffer, where no unit
  /// owns it.
  std::vector<Owner> owners_by_module;
  std::int64_t rank = 0;
};

struct SimulationResult {
  Time step_time;
  Time step_start, step_end;  ///< Of the explained window, in simulated time.
  Breakdown breakdown;
  std::vector<CommunicationRow> communication;
  std::vector<CopyRow> copies;
  std::vector<CriticalPathRow> critical_path;  ///< Largest first.
  std::vector<CriticalPathSegment> critical_segments;
  MemoryResult memory;
  std::vector<StepMemory> step_memory;  ///< Of every rank with an allocator, by rank and step.
  std::vector<StepTime> step_times;     ///< Of every simulated rank, by rank and step.
  std::int64_t ranks_simulated = 0;
  std::int64_t instructions_simulated = 0;
  std::int64_t explained_rank = 0;
  double executed_flops_per_step =
      0;  ///< Of the whole job, with recomputation; of every launch that has FLOPs.
  std::vector<std::string> not_modelled;
  std::optional<Trace> trace;
};

}  // namespace foreshard
