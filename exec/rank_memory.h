#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/access_check.h"
#include "exec/backend.h"
#include "exec/tensor_view.h"
#include "memory/caching_allocator.h"
#include "schedules/schedule.h"

namespace foreshard {

/// The buffers of one rank: which are live, where they lie, and whether an access is allowed.
/// Device buffers come from the caching allocator over the backend's memory, in host order, so its
/// statistics are those of the simulator's. Host buffers come from the process's heap. Not
/// thread-safe: the rank's host thread owns it. Errors are RunError with rank and instruction.
class RankMemory {
 public:
  RankMemory(const Schedule& schedule, const RankProgram& program, std::int64_t rank,
             BackendMemory memory, const AllocatorOptions& options, bool checked);

  /// For the error texts: the instruction being issued.
  void at_instruction(std::uint32_t instruction) { instruction_ = instruction; }

  void allocate(BufferId id);
  void free(BufferId id);
  void record_stream(BufferId id, StreamIndex stream);
  /// Moves what is live in `now` to `before`, for all pairs at once.
  void carry_over(const std::vector<Carry>& carries);

  /// The tensor's memory; absent for an invalid id. The buffer must be live and hold all of the
  /// view.
  TensorView view(TensorId id) const;
  bool live(BufferId id) const { return buffers_[id.value].state == State::kLive; }

  /// Declares the accesses of one piece of work on a stream (checked mode).
  void check_work(StreamIndex stream, const std::vector<TensorView>& reads,
                  const std::vector<TensorView>& writes);
  AccessCheck* order() { return order_ ? &*order_ : nullptr; }

  const AllocatorStats& stats() const { return allocator_.stats(); }
  void reset_peaks() { allocator_.reset_peaks(); }

 private:
  enum class State : std::uint8_t { kNever, kLive, kFreed };
  struct Place {
    State state = State::kNever;
    BlockHandle block;
    std::byte* data = nullptr;
    std::vector<StreamIndex> recorded;
    std::uint32_t since = 0;            ///< Instruction that allocated or freed it.
    std::unique_ptr<std::byte[]> host;  ///< Memory outside the device.
  };

  Place& place(BufferId id);
  [[noreturn]] void fail(const std::string& what) const;
  std::string name_of_buffer(BufferId id) const;
  AccessCheck::Range range_of(BufferId id) const;

  const Schedule& schedule_;
  const RankProgram& program_;
  const std::int64_t rank_;
  CachingAllocator allocator_;
  std::vector<Place> buffers_;
  std::vector<std::unique_ptr<std::byte[]>> replaced_host_memory_;  ///< Streams may still use it.
  std::optional<AccessCheck> order_;
  std::uint32_t instruction_ = 0;
};

}  // namespace foreshard
