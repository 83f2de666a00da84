#pragma once

#include <cstdint>

#include "core/units.h"

namespace foreshard {

/// A place in device memory, real or imagined; 0 is "none".
using DeviceAddress = std::uint64_t;

/// Where the caching allocator's memory comes from: the device driver of a simulated, a host or a
/// real device. Addresses decide between equally good blocks, so two sources that place segments in
/// the same order make the same allocator decisions. Not thread-safe; must outlive its allocator.
/// All sizes are multiples of 2 MiB.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;

  /// Memory of the device.
  virtual Bytes capacity() const = 0;
  /// What of it is taken now, by this and any other user.
  virtual Bytes in_use() const = 0;

  /// Takes memory (cudaMalloc) for `stream`; 0 when less than `size` is free.
  virtual DeviceAddress allocate(Bytes size, std::uint32_t stream) = 0;
  /// Returns what allocate() gave, whole (cudaFree).
  virtual void release(DeviceAddress address, Bytes size) = 0;

  /// Sets aside addresses without memory (cuMemAddressReserve); 0 when there are none left.
  virtual DeviceAddress reserve(Bytes span) = 0;
  /// Returns what reserve() gave, whole; nothing may be mapped there.
  virtual void unreserve(DeviceAddress address, Bytes span) = 0;
  /// Backs reserved addresses by memory (cuMemCreate, cuMemMap); false, and no change, when less
  /// than `size` is free.
  virtual bool map(DeviceAddress address, Bytes size) = 0;
  /// Takes the memory away again; any part of what was mapped.
  virtual void unmap(DeviceAddress address, Bytes size) = 0;
};

/// Tells how far streams have come, for blocks that other streams still use (rule A-9). Events of
/// one stream complete in the order in which they were recorded.
class StreamProgress {
 public:
  /// Names one recorded event; chosen by the implementation.
  using Event = std::uint64_t;

  virtual ~StreamProgress() = default;
  /// Records an event after everything issued to `stream` so far.
  virtual Event record(std::uint32_t stream) = 0;
  /// True if the stream has passed the event at the present moment of the host.
  virtual bool reached(Event event) = 0;
  /// The host waits for the event. Called only from retry_allocate() and empty_cache().
  virtual void synchronize(Event event) = 0;
};

/// An infinitely fast device: every event is complete at once. The lower bound of active and
/// reserved bytes.
class InstantProgress final : public StreamProgress {
 public:
  Event record(std::uint32_t) override { return 0; }
  bool reached(Event) override { return true; }
  void synchronize(Event) override {}
};

/// A device that comes forward only when the host waits for it: the upper bound of active and
/// reserved bytes. Waiting for one event (by the allocator or through wait_for_all) completes all
/// that were recorded before it.
class OnlyWhenWaitedProgress final : public StreamProgress {
 public:
  Event record(std::uint32_t) override { return ++last_; }
  bool reached(Event event) override { return event <= complete_; }
  void synchronize(Event event) override {
    if (event > complete_) complete_ = event;
  }
  /// The host synchronises with the whole device.
  void wait_for_all() { complete_ = last_; }

 private:
  Event last_ = 0;
  Event complete_ = 0;
};

/// One decision of the allocator about device memory.
struct SegmentEvent {
  enum class Kind { kAllocate, kRelease, kMap, kUnmap };
  Kind kind;
  DeviceAddress address;
  Bytes bytes;
  std::uint32_t stream;
};

/// Hears of each segment decision, after it was carried out and counted. Must not call the
/// allocator.
class SegmentListener {
 public:
  virtual ~SegmentListener() = default;
  virtual void on_segment(const SegmentEvent& event) = 0;
};

}  // namespace foreshard
