#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exec/calls.h"
#include "memory/segment_source.h"
#include "schedules/trace.h"

namespace foreshard {

/// The device memory of one rank, as the caching allocator wants it.
struct BackendMemory {
  SegmentSource* segments = nullptr;
  StreamProgress* progress = nullptr;
};

/// What the host waits for.
struct SyncTarget {
  enum class Kind : std::uint8_t { kEvent, kStream, kDevice };
  Kind kind = Kind::kDevice;
  EventId event;
  StreamIndex stream = 0;
};

/// One rank's device: streams that run work in order, events between them, memory. The interpreter
/// calls it from the rank's host thread only. The CPU backend is exec/cpu_backend.h; a GPU backend
/// is another implementation of this.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual BackendMemory memory() = 0;
  /// Appends work to a stream. Errors of the work itself surface as the run's failure.
  virtual void submit(StreamIndex stream, DeviceWork work, NominalTime time) = 0;
  /// The event completes when the stream reaches this point.
  virtual void record(EventId event, StreamIndex stream, Time issued) = 0;
  /// Later work of the stream waits for the event's last record; an event never recorded is
  /// complete.
  virtual void wait(EventId event, StreamIndex stream) = 0;
  /// The host waits. Returns the nominal time of what was waited for (zero without emulation).
  virtual Time synchronize(const SyncTarget& target) = 0;
  /// Sets the streams' nominal clocks to zero. The device must be idle.
  virtual void restart_clock() = 0;
  /// Marks the end of a step on all streams: finish() gives the time when the device reached it.
  virtual void end_step() = 0;
  /// Ends all streams; returns the spans of the device work and, by step, when the device had
  /// finished it.
  virtual void finish(std::vector<Span>& spans, std::vector<Time>& step_ends) = 0;
};

}  // namespace foreshard
