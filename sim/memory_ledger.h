#pragma once

// One rank's memory: hands the program's allocs and frees to the caching allocator in host order
// and remembers when the peak was. The live set at the peak is found afterwards by replaying the
// program up to it.

#include <cstdint>
#include <vector>

#include "memory/caching_allocator.h"
#include "memory/virtual_segment_source.h"
#include "schedules/schedule.h"
#include "schedules/trace.h"
#include "sim/options.h"

namespace foreshard::sim {

/// A moment in the run of a program: step -1 is the initialisation.
struct Moment {
  std::int32_t step = -1;
  std::uint32_t instruction = UINT32_MAX;
  bool operator==(const Moment&) const = default;
};

class MemoryLedger {
 public:
  /// `capacity` is the device's memory, `taken` what context and communicators hold of it.
  MemoryLedger(const RankProgram& program, const AllocatorOptions& options, Bytes capacity,
               Bytes taken, StreamProgress& progress);

  enum class Outcome : std::uint8_t { kDone, kNeedsRetry };
  /// Everything of an alloc but the last resort. kNeedsRetry: let the device come to rest, then
  /// call retry().
  Outcome alloc(std::uint32_t buffer, Moment now);
  void retry(std::uint32_t buffer, Moment now);
  void free(std::uint32_t buffer);
  void record_stream(std::uint32_t buffer, StreamIndex stream);
  /// The last step begins again: its surviving buffers take the places of those that it found.
  void carry();

  /// All that decides about later requests, but for the progress of streams: the allocator's
  /// blocks, and which of them hold the buffers that the program carries from step to step.
  struct State {
    bool known = false;
    std::vector<std::int64_t> blocks;    ///< CachingAllocator::Form
    std::vector<std::uint32_t> carried;  ///< Their places in it.
    std::int64_t host_bytes = 0;
    /// False if either is not known.
    bool operator==(const State& o) const {
      return known && o.known && blocks == o.blocks && carried == o.carried &&
             host_bytes == o.host_bytes;
    }
  };
  /// `side`: the buffers as a step finds them, or as it leaves them. Not known with options that
  /// count calls (garbage collection).
  State state(BufferId Carry::*side) const;

  void begin_step();
  StepMemory end_step(std::int64_t rank, std::int32_t step) const;

  /// True while freed blocks wait for other streams: the next alloc asks how far those have come.
  bool pending() const { return stats().active.current != stats().allocated.current; }

  const AllocatorStats& stats() const { return allocator_.stats(); }
  std::int64_t device_allocs() const { return stats().device_allocs; }
  std::int64_t device_frees() const { return stats().device_frees; }

  struct Failure {
    OutOfMemory report;
    std::uint32_t buffer = 0;
    Moment at;
  };
  const std::vector<Failure>& failures() const { return failures_; }
  /// Highest over the whole run.
  Bytes allocated_peak() const { return Bytes(allocated_peak_); }
  Bytes reserved_peak() const { return Bytes(reserved_peak_); }
  Bytes host_peak() const { return Bytes(host_peak_); }
  Moment peak_at() const { return peak_at_; }
  /// Bytes of the block that a buffer got last.
  Bytes block_bytes(std::uint32_t buffer) const { return Bytes(bytes_[buffer]); }
  std::int64_t retries() const { return stats().retries; }

 private:
  void placed(std::uint32_t buffer, const Allocation& allocation, Moment now);

  const RankProgram& program_;
  VirtualSegmentSource source_;
  CachingAllocator allocator_;
  std::vector<BlockHandle> block_;  ///< By buffer.
  std::vector<BlockHandle> carried_;
  std::vector<std::int64_t> bytes_;  ///< By buffer: size of the block it got last.
  std::int64_t allocated_peak_ = 0, reserved_peak_ = 0;
  std::int64_t host_now_ = 0, host_peak_ = 0;
  std::int64_t retries_at_step_ = 0;
  std::size_t failures_at_step_ = 0;
  Moment peak_at_;
  std::vector<Failure> failures_;
};

}  // namespace foreshard::sim
