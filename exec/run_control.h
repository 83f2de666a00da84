#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/error.h"

namespace foreshard {

/// Thrown inside a thread of a run that another thread has ended; never leaves run().
struct RunAborted : std::exception {
  const char* what() const noexcept override { return "the run was ended by another rank"; }
};

/// The failure state that all threads of one run share. The first failure wins; every wait notices
/// it within a slice (20 ms), so a run ends on all ranks in bounded time. Thread-safe.
class RunControl {
 public:
  explicit RunControl(std::chrono::milliseconds watchdog) : watchdog_(watchdog) {}

  std::chrono::milliseconds watchdog() const { return watchdog_; }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  void throw_if_failed() const {
    if (failed()) throw RunAborted();
  }

  /// Ends the run. Later failures are ignored: they are consequences.
  void fail(std::exception_ptr error) {
    const std::scoped_lock lock(mutex_);
    if (error_) return;
    error_ = error;
    failed_.store(true, std::memory_order_release);
  }

  /// The first failure, if any.
  std::exception_ptr error() const {
    const std::scoped_lock lock(mutex_);
    return error_;
  }

  /// Every thread calls this as it comes forward; a run in which nobody does for longer than the
  /// watchdog is stuck.
  void tick() { ticks_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t ticks() const { return ticks_.load(std::memory_order_relaxed); }

  /// Sleeps; throws RunAborted if the run fails meanwhile.
  void sleep_until(std::chrono::steady_clock::time_point instant) {
    for (auto now = std::chrono::steady_clock::now(); now < instant;
         now = std::chrono::steady_clock::now()) {
      throw_if_failed();
      tick();
      std::this_thread::sleep_until(
          std::min(instant, now + std::chrono::steady_clock::duration(kSlice)));
    }
  }

  /// Waits until `ready()` (checked under `lock`) holds; throws RunAborted if the run fails
  /// meanwhile. Returns false if `limit` passed first (zero: no limit).
  template <typename Ready>
  bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Ready ready,
            std::chrono::milliseconds limit = std::chrono::milliseconds::zero()) const {
    const auto start = std::chrono::steady_clock::now();
    while (!ready()) {
      throw_if_failed();
      if (limit.count() > 0 && std::chrono::steady_clock::now() - start >= limit) return false;
      // system_clock: its timed wait is the one that ThreadSanitizer understands; a clock jump only
      // shifts one slice.
      changed.wait_until(lock, std::chrono::system_clock::now() + kSlice);
    }
    return true;
  }

 private:
  static constexpr std::chrono::milliseconds kSlice{20};
  const std::chrono::milliseconds watchdog_;
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> ticks_{0};
  mutable std::mutex mutex_;
  std::exception_ptr error_;
};

/// Starts a thread of a run. RunError if the machine gives none.
template <typename Work>
std::jthread start_thread(Work work) {
  try {
    return std::jthread(std::move(work));
  } catch (const std::system_error& e) {
    throw RunError(std::string("this machine gives no thread for another rank or stream: ") +
                   e.what());
  }
}

}  // namespace foreshard
