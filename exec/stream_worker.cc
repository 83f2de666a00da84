#include "exec/stream_worker.h"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

namespace foreshard {
namespace {

const CallOrigin& origin_of(const DeviceWork& work) {
  return std::visit([](const auto& call) -> const CallOrigin& { return call.origin; }, work);
}

}  // namespace

StreamWorker::StreamWorker(StreamMode mode, StreamIndex index, RunControl& control,
                           const WallClock& clock, Pacing pacing, Executor execute)
    : mode_(mode),
      index_(index),
      control_(control),
      clock_(clock),
      pacing_(pacing),
      execute_(std::move(execute)) {
  if (mode_ == StreamMode::kThreads) thread_ = start_thread([this] { loop(); });
}

StreamWorker::~StreamWorker() {
  if (!thread_.joinable()) return;
  put({.kind = Item::Kind::kStop, .work = {}, .time = {}, .completion = nullptr});
  thread_.join();
}

void StreamWorker::submit(DeviceWork work, NominalTime time) {
  put({.kind = Item::Kind::kWork, .work = std::move(work), .time = time, .completion = nullptr});
}

std::shared_ptr<Completion> StreamWorker::record(Time issued) {
  auto completion = std::make_shared<Completion>();
  put({.kind = Item::Kind::kRecord,
       .work = {},
       .time = {issued, Time(0)},
       .completion = completion});
  return completion;
}

void StreamWorker::wait(std::shared_ptr<Completion> event) {
  put({.kind = Item::Kind::kWait, .work = {}, .time = {}, .completion = std::move(event)});
}

void StreamWorker::end_step() {
  put({.kind = Item::Kind::kEndStep, .work = {}, .time = {}, .completion = nullptr});
}

void StreamWorker::restart_clock() {
  put({.kind = Item::Kind::kRestart, .work = {}, .time = {}, .completion = nullptr});
}

void StreamWorker::finish() {
  if (!thread_.joinable()) return;
  put({.kind = Item::Kind::kStop, .work = {}, .time = {}, .completion = nullptr});
  thread_.join();
}

void StreamWorker::put(Item item) {
  if (mode_ == StreamMode::kInline) {
    process(item);
    return;
  }
  const std::scoped_lock lock(mutex_);
  queue_.push_back(std::move(item));
  changed_.notify_one();
}

void StreamWorker::loop() {
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  try {
    for (;;) {
      Item item;
      {
        std::unique_lock lock(mutex_);
        control_.wait(lock, changed_, [&] { return !queue_.empty(); });
        item = std::move(queue_.front());
        queue_.pop_front();
      }
      if (item.kind == Item::Kind::kStop) return;
      control_.throw_if_failed();
      control_.tick();
      process(item);
    }
  } catch (const RunAborted&) {
  } catch (...) {
    control_.fail(std::current_exception());
  }
}

void StreamWorker::process(Item& item) {
  switch (item.kind) {
    case Item::Kind::kWork:
      return run_work(item.work, item.time);
    case Item::Kind::kRecord:
      nominal_ = std::max(nominal_, item.time.issued);
      return item.completion->set(nominal_);
    case Item::Kind::kWait:
      nominal_ = std::max(nominal_, item.completion->wait(control_));
      return;
    case Item::Kind::kEndStep:
      step_ends_.push_back(clock_.now());
      return;
    case Item::Kind::kRestart:
      nominal_ = Time(0);
      return;
    case Item::Kind::kStop:
      return;
  }
}

void StreamWorker::run_work(const DeviceWork& work, NominalTime time) {
  const CallOrigin& origin = origin_of(work);
  const Start start = execute_(work, {std::max(nominal_, time.issued), clock_.now()});
  nominal_ = start.nominal + time.duration;
  if (pacing_.enabled && origin.step >= 0) hold_until(nominal_);
  if (origin.step < 0) return;
  spans_.push_back({.rank = static_cast<std::int32_t>(origin.rank),
                    .lane = Lane::kStream,
                    .stream = index_,
                    .instruction = origin.instruction,
                    .step = origin.step,
                    .start = start.real,
                    .end = clock_.now()});
}

void StreamWorker::hold_until(Time deadline) {
  ++timed_;
  control_.sleep_until(clock_.wall(deadline));
  if (clock_.now() > deadline + pacing_.tolerance) ++overruns_;
}

}  // namespace foreshard
