#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "schedules/schedule.h"

namespace foreshard {

/// Finds accesses to device memory that nothing orders, as the host issues them and without regard
/// to actual timing: two streams touch the same bytes, one of them writes, and no event, stream
/// wait or host wait lies between; or bytes are read that nothing wrote since they were allocated.
/// Works on addresses, so it also sees a buffer that takes over memory which another stream still
/// uses. One per rank; not thread-safe.
///
/// Method: vector clocks (one component per stream) advanced by the host's calls, and for each byte
/// range the clocks of its last reads and writes by stream (Flanagan and Freund, FastTrack, PLDI
/// 2009, without their compression). Strided views count as the interval from their first to their
/// last byte.
class AccessCheck {
 public:
  /// A range of bytes; empty ones are ignored.
  struct Range {
    std::uint64_t begin = 0, end = 0;
  };

  AccessCheck(std::size_t streams, std::uint32_t events);

  void allocate(Range range);
  /// Forgets what `streams` did there, and what they are ordered after: the allocator waits for
  /// them before it reuses the bytes (record_stream).
  void forget(Range range, const std::vector<StreamIndex>& streams);

  /// Starts a piece of work on a stream; reads and writes that follow belong to it.
  void begin_work(StreamIndex stream, std::uint32_t instruction);
  /// "" if fine, otherwise what is wrong, e.g. "reads bytes that stream 2 writes (instruction 7)
  /// and stream 0 did not wait for it".
  std::string read(Range range);
  std::string write(Range range);

  void record_event(EventId event, StreamIndex stream);
  void wait_event(EventId event, StreamIndex stream);
  void sync_event(EventId event);
  void sync_stream(StreamIndex stream);
  void sync_device();

 private:
  using Clock = std::vector<std::uint32_t>;

  struct Touch {
    std::uint32_t time = 0;  ///< Component of the stream's clock; 0 = never.
    std::uint32_t instruction = 0;
  };
  /// Bytes with the same history.
  struct Cell {
    std::uint64_t end = 0;
    bool written = false;
    std::vector<Touch> reads, writes;  ///< By stream.
  };

  static void join(Clock& into, const Clock& other);
  /// Cuts cells so that they begin and end at the range's bounds, fills gaps, and calls `f` for
  /// each cell inside.
  template <typename F>
  void for_cells(Range range, F f);
  void split_at(std::uint64_t address);
  std::string conflict(const std::vector<Touch>& touches, const char* mine,
                       const char* theirs) const;

  std::size_t streams_;
  std::vector<Clock> clocks_;  ///< By stream.
  Clock host_;
  std::vector<Clock> events_;  ///< Empty = never recorded.
  StreamIndex current_ = 0;
  std::uint32_t instruction_ = 0;
  std::map<std::uint64_t, Cell> cells_;  ///< By first byte; disjoint.
};

}  // namespace foreshard
