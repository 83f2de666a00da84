#include "study/memory_replay.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "memory/caching_allocator.h"
#include "memory/virtual_segment_source.h"

namespace foreshard {
namespace {

/// A device that comes forward only when the host waits: an event is complete once the host has
/// waited for it, or for work that waited for it. Each stream knows how far every stream is when it
/// gets there.
class WaitedProgress final : public StreamProgress {
 public:
  explicit WaitedProgress(std::size_t streams)
      : streams_(streams, Clock(streams)), host_(streams) {}

  Event record(std::uint32_t stream) override {
    Clock& own = streams_[stream];
    ++own[stream];
    recorded_.push_back({stream, own});
    return recorded_.size() - 1;
  }
  bool reached(Event event) override {
    const Recorded& r = recorded_[event];
    return host_[r.stream] >= r.clock[r.stream];
  }
  void synchronize(Event event) override { join(host_, recorded_[event].clock); }

  // Instructions of the program.
  void record_event(std::uint32_t event, std::uint32_t stream) { events_[event] = record(stream); }
  void wait_event(std::uint32_t stream, std::uint32_t event) {
    join(streams_[stream], clock_of(event));
  }
  void sync_event(std::uint32_t event) { join(host_, clock_of(event)); }
  void sync_stream(std::uint32_t stream) { join(host_, streams_[stream]); }
  void sync_device() {
    for (const Clock& c : streams_) join(host_, c);
  }

 private:
  using Clock = std::vector<std::uint64_t>;
  struct Recorded {
    std::uint32_t stream;
    Clock clock;
  };
  static void join(Clock& a, const Clock& b) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = std::max(a[i], b[i]);
  }
  const Clock& clock_of(std::uint32_t event) const { return recorded_[events_.at(event)].clock; }

  std::vector<Clock> streams_;
  Clock host_;
  std::vector<Recorded> recorded_;
  std::unordered_map<std::uint32_t, Event> events_;
};

class Replay {
 public:
  Replay(const RankProgram& program, const ReplayOptions& options)
      : program_(program),
        options_(options),
        source_(options.device_memory),
        waited_(program.streams.size()),
        allocator_(
            options.allocator, source_,
            options.events_only_when_waited ? static_cast<StreamProgress&>(waited_) : instant_) {
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
      case InstructionKind::kRecordEvent:
        waited_.record_event(op.id, op.stream);
        return true;
      case InstructionKind::kWaitEvent:
        waited_.wait_event(op.stream, op.id);
        return true;
      case InstructionKind::kSyncEvent:
        waited_.sync_event(op.id);
        return true;
      case InstructionKind::kSyncStream:
        waited_.sync_stream(op.stream);
        return true;
      case InstructionKind::kSyncDevice:
        waited_.sync_device();
        return true;
      case InstructionKind::kMark:
        mark(program_.marks[op.id]);
        return true;
      default:
        return true;
    }
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
      waited_.sync_device();  // The recording script synchronises the device between steps.
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
  WaitedProgress waited_;
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
