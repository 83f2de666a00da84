#include "exec/cpu_backend.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "exec/kernels/kernels.h"
#include "memory/host_segment_source.h"

namespace foreshard {
namespace {

/// Host memory whose release waits for the device first, as cudaFree does.
class DeviceSegments final : public SegmentSource {
 public:
  DeviceSegments(Bytes capacity, std::function<void()> drain)
      : host_(capacity), drain_(std::move(drain)) {}

  Bytes capacity() const override { return host_.capacity(); }
  Bytes in_use() const override { return host_.in_use(); }
  DeviceAddress allocate(Bytes size, std::uint32_t stream) override {
    return host_.allocate(size, stream);
  }
  void release(DeviceAddress address, Bytes size) override {
    drain_();
    host_.release(address, size);
  }
  DeviceAddress reserve(Bytes span) override { return host_.reserve(span); }
  void unreserve(DeviceAddress address, Bytes span) override { host_.unreserve(address, span); }
  bool map(DeviceAddress address, Bytes size) override { return host_.map(address, size); }
  void unmap(DeviceAddress address, Bytes size) override {
    drain_();
    host_.unmap(address, size);
  }

 private:
  HostSegmentSource host_;
  std::function<void()> drain_;
};

class CpuBackend final : public Backend, private StreamProgress {
 public:
  CpuBackend(const CpuBackendShared& shared, StreamMode mode, std::size_t streams,
             std::uint32_t events, Bytes capacity, PacingCounts& counts)
      : shared_(shared),
        counts_(counts),
        segments_(capacity, [this] { drain(); }),
        events_(events) {
    const auto execute = [this](const DeviceWork& work, StreamWorker::Start earliest) {
      return this->execute(work, earliest);
    };
    for (std::size_t s = 0; s < streams; ++s) {
      streams_.push_back(std::make_unique<StreamWorker>(
          mode, static_cast<StreamIndex>(s), shared.control, shared.clock, shared.pacing, execute));
    }
  }

  BackendMemory memory() override { return {&segments_, this}; }

  void submit(StreamIndex stream, DeviceWork work, NominalTime time) override {
    streams_.at(stream)->submit(std::move(work), time);
  }

  void record(EventId event, StreamIndex stream, Time issued) override {
    events_.at(event.value) = streams_.at(stream)->record(issued);
  }

  void wait(EventId event, StreamIndex stream) override {
    if (const auto& completion = events_.at(event.value)) streams_.at(stream)->wait(completion);
  }

  Time synchronize(const SyncTarget& target) override {
    Time reached;
    switch (target.kind) {
      case SyncTarget::Kind::kEvent:
        if (const auto& completion = events_.at(target.event.value))
          reached = completion->wait(shared_.control);
        break;
      case SyncTarget::Kind::kStream:
        reached = streams_.at(target.stream)->record(Time(0))->wait(shared_.control);
        break;
      case SyncTarget::Kind::kDevice:
        for (const auto& stream : streams_)
          reached = std::max(reached, stream->record(Time(0))->wait(shared_.control));
        break;
    }
    return reached;
  }

  void end_step() override {
    for (const auto& stream : streams_) stream->end_step();
  }

  void restart_clock() override {
    for (const auto& stream : streams_) stream->restart_clock();
  }

  void finish(std::vector<Span>& spans, std::vector<Time>& step_ends) override {
    finished_ = true;
    for (const auto& stream : streams_) {
      stream->finish();
      spans.insert(spans.end(), stream->spans().begin(), stream->spans().end());
      const std::vector<Time>& ends = stream->step_ends();
      step_ends.resize(std::max(step_ends.size(), ends.size()));
      for (std::size_t i = 0; i < ends.size(); ++i) step_ends[i] = std::max(step_ends[i], ends[i]);
      counts_.timed += stream->timed();
      counts_.overruns += stream->overruns();
    }
  }

 private:
  // StreamProgress, for the allocator: events that no schedule names.
  Event record(std::uint32_t stream) override {
    while (!pending_.empty() && pending_.front()->done()) {
      pending_.pop_front();
      ++first_pending_;
    }
    pending_.push_back(streams_.at(stream)->record(Time(0)));
    return first_pending_ + pending_.size() - 1;
  }
  bool reached(Event event) override {
    return event < first_pending_ || pending_.at(event - first_pending_)->done();
  }
  void synchronize(Event event) override {
    if (event >= first_pending_) pending_.at(event - first_pending_)->wait(shared_.control);
  }

  void drain() {
    if (finished_ || shared_.control.failed()) return;  // memory goes when all threads have ended
    synchronize(SyncTarget{});
  }

  StreamWorker::Start execute(const DeviceWork& work, StreamWorker::Start earliest) {
    if (const auto* call = std::get_if<CollectiveCall>(&work)) {
      const CollectiveStart start = shared_.transport.collective(*call, earliest.nominal);
      return {start.nominal, shared_.clock.at(start.real)};
    }
    if (const auto* call = std::get_if<KernelCall>(&work)) {
      run_kernel(*call);
    } else {
      run_copy(std::get<CopyCall>(work));
    }
    return earliest;
  }

  const CpuBackendShared shared_;
  PacingCounts& counts_;
  bool finished_ = false;
  DeviceSegments segments_;
  std::vector<std::shared_ptr<Completion>> events_;
  /// The allocator's events from number `first_pending_` on; all before it are reached.
  std::deque<std::shared_ptr<Completion>> pending_;
  Event first_pending_ = 0;
  std::vector<std::unique_ptr<StreamWorker>>
      streams_;  // last: its threads end before the rest goes
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const CpuBackendShared& shared, StreamMode mode,
                                          std::size_t streams, std::uint32_t events, Bytes capacity,
                                          PacingCounts& counts) {
  return std::make_unique<CpuBackend>(shared, mode, streams, events, capacity, counts);
}

}  // namespace foreshard
