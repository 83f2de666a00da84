#include "study/memory_replay.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <unordered_map>

#include "memory/caching_allocator.h"
#include "memory/virtual_segment_source.h"

namespace foreshard {
namespace {

/// A device that comes forward when the host waits and, given a lag, as the host goes on: an event
/// is complete once the host has waited for it or for work that waited for it, or once `lag`
/// further operations were issued after the last one before it. Each stream knows how far every
/// stream is when it gets there; positions count operations and waits.
class SlowProgress final : public StreamProgress {
 public:
  SlowProgress(std::size_t streams, std::optional<std::int64_t> lag)
      : lag_(lag), streams_(streams), host_(streams) {
    for (OneStream& s : streams_) s.clock.resize(streams);
  }

  Event record(std::uint32_t stream) override {
    const OneStream& s = streams_[stream];
    recorded_.push_back({stream, s.last_operation, s.clock});
    return recorded_.size() - 1;
  }
  bool reached(Event event) override {
    const Recorded& r = recorded_[event];
    if (host_[r.stream] >= r.clock[r.stream]) return true;
    if (!lag_ || r.operation + *lag_ > issued_) return false;
    join(host_, r.clock);
    return true;
  }
  void synchronize(Event event) override { join(host_, recorded_[event].clock); }

  // Instructions of the program.
  void issue(std::uint32_t stream, std::int64_t operations) {
    OneStream& s = streams_[stream];
    s.clock[stream] += operations;
    s.last_operation = issued_ += operations;
  }
  /// Before a collective the process group goes through those in flight, oldest first, as far as
  /// they have ended; right after it, it asks for the new one. On a stream that was idle before it
  /// but for a wait, the answer rests on an old operation; it tells the host that the wait is over.
  void issue_collective(std::uint32_t stream, GroupId group) {
    std::deque<BeginAndEnd>& in_flight = in_flight_[group.value];
    while (!in_flight.empty() && ended(in_flight.front())) in_flight.pop_front();
    const Event begin = record(stream);
    issue(stream, 1);
    in_flight.push_back({begin, record(stream)});
    ended(in_flight.back());
  }
  void record_event(std::uint32_t event, std::uint32_t stream) { events_[event] = record(stream); }
  void wait_event(std::uint32_t stream, std::uint32_t event) {
    const Recorded& r = recorded_[events_.at(event)];
    if (r.stream == stream || host_[r.stream] >= r.clock[r.stream]) return;
    ++streams_[stream].clock[stream];
    join(streams_[stream].clock, r.clock);
  }
  void sync_event(std::uint32_t event) { synchronize(events_.at(event)); }
  void sync_stream(std::uint32_t stream) { join(host_, streams_[stream].clock); }
  void sync_device() {
    for (const OneStream& s : streams_) join(host_, s.clock);
  }

 private:
  using Clock = std::vector<std::int64_t>;
  struct OneStream {
    std::int64_t last_operation = 0;  ///< Which of all that were issued.
    Clock clock;
  };
  struct Recorded {
    std::uint32_t stream;
    std::int64_t operation;
    Clock clock;
  };
  struct BeginAndEnd {
    Event begin, end;
  };
  /// The end is asked for only once it has begun.
  bool ended(const BeginAndEnd& collective) {
    return reached(collective.begin) && reached(collective.end);
  }
  static void join(Clock& a, const Clock& b) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = std::max(a[i], b[i]);
  }

  std::optional<std::int64_t> lag_;
  std::int64_t issued_ = 0;
  std::vector<OneStream> streams_;
  Clock host_;
  std::vector<Recorded> recorded_;
  std::unordered_map<std::uint32_t, Event> events_;
  std::unordered_map<std::uint32_t, std::deque<BeginAndEnd>> in_flight_;  ///< By group.
};

class Replay {
 public:
  Replay(const RankProgram& program, const ReplayOptions& options)
      : program_(program),
        options_(options),
        source_(options.device_memory),
        slow_(program.streams.size(),
              options.events == DeviceEvents::kLagging ? std::optional(options.lag) : std::nullopt),
        allocator_(options.allocator, source_,
                   options.events == DeviceEvents::kInstant ? static_cast<StreamProgress&>(instant_)
                                                            : slow_) {
    blocks_.resize(program.buffers.size());
  }

  MemoryReplay run() {
    for (const Instruction& op : program_.instructions) {
      if (!execute(op)) break;
    }
    end_step();
    result_.retries = allocator_.stats().retries;
    result_.ooms = allocator_.stats().ooms;
    return std::move(result_);
  }

 private:
  bool execute(const Instruction& op) {
    switch (op.kind) {
      case InstructionKind::kAlloc:
        return allocate(op.id);
      case InstructionKind::kFree:
        allocator_.free(blocks_[op.id]);
        blocks_[op.id] = {};
        return true;
      case InstructionKind::kRecordStream:
        allocator_.record_stream(blocks_[op.id], op.stream);
        return true;
      case InstructionKind::kLaunch:
        issue(program_.launches[op.id]);
        return true;
      case InstructionKind::kCopy:
        slow_.issue(program_.copies[op.id].stream, 1);
        return true;
      case InstructionKind::kCollective: {
        const Collective& c = program_.collectives[op.id];
        slow_.issue_collective(c.stream, c.group);
        return true;
      }
      case InstructionKind::kRecordEvent:
        slow_.record_event(op.id, op.stream);
        return true;
      case InstructionKind::kWaitEvent:
        slow_.wait_event(op.stream, op.id);
        return true;
      case InstructionKind::kSyncEvent:
        slow_.sync_event(op.id);
        return true;
      case InstructionKind::kSyncStream:
        slow_.sync_stream(op.stream);
        return true;
      case InstructionKind::kSyncDevice:
        slow_.sync_device();
        return true;
      case InstructionKind::kMark:
        mark(program_.marks[op.id]);
        return true;
      default:
        return true;
    }
  }

  /// Kernels of the CPU and what the executor reads are no operations of the device.
  void issue(const Launch& l) {
    if (!program_.streams[l.stream].on_host && l.op != OpKind::kObserve)
      slow_.issue(l.stream, l.kernels);
  }

  bool allocate(std::uint32_t id) {
    const Buffer& b = program_.buffers[id];
    if (b.space != MemorySpace::kDevice) return true;
    const Allocation a = allocator_.allocate(b.bytes, b.pool);
    if (!a.ok) {
      result_.oom = steps_begun_ == 0 ? "init" : phase_;
      failed_ = true;
      return false;
    }
    blocks_[id] = a.block;
    return true;
  }

  void mark(const Mark& m) {
    if (m.kind == MarkKind::kMicroBatch && m.begin) micro_ = m.number;
    if (m.kind == MarkKind::kStep && m.begin) {
      if (steps_begun_ == 0) {
        result_.init_allocated = allocator_.stats().allocated.current;
        result_.init_reserved = allocator_.stats().reserved.current;
      }
      end_step();
      slow_.sync_device();  // The recording script synchronises the device between steps.
      ++steps_begun_;
      step_ = {};
      micro_ = 0;
    }
    if (m.kind == MarkKind::kPhase && m.begin && steps_begun_ > 0) begin_phase(name(m.phase));
  }

  std::string name(Phase p) const {
    const std::string text(name_of(p == Phase::kRecompute ? Phase::kBackward : p));
    const bool inside = p == Phase::kInput || p == Phase::kForward || p == Phase::kLoss ||
                        p == Phase::kBackward || p == Phase::kRecompute;
    if (!options_.number_micro_batches || !inside || (p == Phase::kInput && micro_ == 0))
      return text;
    return text + " mb" + std::to_string(micro_);
  }

  void begin_phase(const std::string& phase) {
    if (phase == phase_) return;
    end_phase();
    phase_ = phase;
    allocator_.reset_peaks();
  }

  void end_phase() {
    if (phase_.empty()) return;
    const AllocatorStats& s = allocator_.stats();
    step_.phases.push_back({phase_, s.allocated.peak, s.reserved.peak, s.active.peak});
    step_.peak_allocated = std::max(step_.peak_allocated, s.allocated.peak);
    step_.peak_reserved = std::max(step_.peak_reserved, s.reserved.peak);
    step_.peak_active = std::max(step_.peak_active, s.active.peak);
    if (!failed_) phase_.clear();
  }

  void end_step() {
    if (steps_begun_ == 0) return;
    end_phase();
    if (failed_) return;
    const AllocatorStats& s = allocator_.stats();
    step_.allocated_end = s.allocated.current;
    step_.reserved_end = s.reserved.current;
    step_.retries = s.retries;
    result_.steps.push_back(std::move(step_));
  }

  const RankProgram& program_;
  const ReplayOptions& options_;
  VirtualSegmentSource source_;
  InstantProgress instant_;
  SlowProgress slow_;
  CachingAllocator allocator_;
  std::vector<BlockHandle> blocks_;
  MemoryReplay result_;
  StepPeaks step_;
  std::string phase_;
  int steps_begun_ = 0, micro_ = 0;
  bool failed_ = false;
};

}  // namespace

MemoryReplay replay_memory(const RankProgram& program, const ReplayOptions& options) {
  return Replay(program, options).run();
}

}  // namespace foreshard
