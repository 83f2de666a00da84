#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/units.h"
#include "exec/calls.h"
#include "exec/run.h"
#include "exec/run_control.h"
#include "exec/wall_clock.h"
#include "schedules/trace.h"

namespace foreshard {

/// Set once when a stream passes a point. Shared by the setter and all waiters, so that it outlives
/// both.
class Completion {
 public:
  void set(Time nominal) {
    const std::scoped_lock lock(mutex_);
    done_ = true;
    nominal_ = nominal;
    changed_.notify_all();
  }
  bool done() const {
    const std::scoped_lock lock(mutex_);
    return done_;
  }
  /// Waits; returns the nominal time at which it was reached.
  Time wait(const RunControl& control) {
    std::unique_lock lock(mutex_);
    control.wait(lock, changed_, [&] { return done_; });
    return nominal_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Time nominal_;
};

/// Emulation as the streams see it: whether to hold every piece of work until its deadline.
struct Pacing {
  bool enabled = false;
  Time tolerance;  ///< In units of the run's clock.
};

/// One stream of one rank: runs work in the order of submission, in a thread of its own or at once
/// in the caller's. All methods but the destructor are called from the rank's host thread.
class StreamWorker {
 public:
  /// When a piece of work began, after meeting all that it had to meet: by the nominal and by the
  /// run's clock.
  struct Start {
    Time nominal, real;
  };
  /// Executes one piece of work; `earliest` is its start if it has nobody to meet.
  using Executor = std::function<Start(const DeviceWork&, Start earliest)>;

  StreamWorker(StreamMode mode, StreamIndex index, RunControl& control, const WallClock& clock,
               Pacing pacing, Executor execute);
  ~StreamWorker();
  StreamWorker(const StreamWorker&) = delete;
  StreamWorker& operator=(const StreamWorker&) = delete;

  void submit(DeviceWork work, NominalTime time);
  /// A point in the stream's order. `issued`: nominal time of the host at the call.
  std::shared_ptr<Completion> record(Time issued);
  void wait(std::shared_ptr<Completion> event);
  void end_step();
  /// Nominal clock back to zero; the stream must be empty.
  void restart_clock();
  /// Runs what is left and ends the thread.
  void finish();

  /// After finish().
  std::vector<Span>& spans() { return spans_; }
  const std::vector<Time>& step_ends() const { return step_ends_; }
  std::int64_t timed() const { return timed_; }
  std::int64_t overruns() const { return overruns_; }

 private:
  struct Item {
    enum class Kind : std::uint8_t {
      kWork,
      kRecord,
      kWait,
      kEndStep,
      kRestart,
      kStop
    } kind = Kind::kWork;
    DeviceWork work;
    NominalTime time;
    std::shared_ptr<Completion> completion;
  };

  void put(Item item);
  void loop();
  void process(Item& item);
  void run_work(const DeviceWork& work, NominalTime time);
  void hold_until(Time deadline);

  const StreamMode mode_;
  const StreamIndex index_;
  RunControl& control_;
  const WallClock& clock_;
  const Pacing pacing_;
  const Executor execute_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;

  // Owned by the thread that processes items.
  Time nominal_;
  std::vector<Span> spans_;
  std::vector<Time> step_ends_;
  std::int64_t timed_ = 0, overruns_ = 0;

  std::jthread thread_;  ///< Last: what it uses is there before it starts.
};

}  // namespace foreshard
