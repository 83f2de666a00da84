#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/keep_memory.h"

namespace foreshard {

inline std::size_t cores() { return std::max(1u, std::thread::hardware_concurrency()); }

/// Calls `work(i)` for i = 0 .. n - 1 on at most so many threads, the caller's among them (fewer
/// where the machine gives no more); they begin in this order, and `work` must not depend on it.
/// When all have stopped the exception of the smallest i that threw is thrown again: the one that a
/// loop would have met.
template <typename Work>
void parallel_for(std::size_t n, const Work& work, std::size_t most_threads = cores()) {
  const std::size_t threads = std::min(n, most_threads);
  std::atomic<std::size_t> next{0};
  std::exception_ptr error;
  std::size_t failed = n;  ///< The i that threw it.
  std::mutex mutex;
  const auto loop = [&] {
    for (std::size_t i = next++; i < n; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (i < failed) failed = i, error = std::current_exception();
        next = n;
      }
    }
  };
  {
    std::vector<std::jthread> pool;
    pool.reserve(threads);
    const auto on_thread = [&loop] {
      keep_freed_memory_of_thread();
      loop();
    };
    try {
      for (std::size_t t = 1; t < threads; ++t) pool.emplace_back(on_thread);
    } catch (const std::system_error&) {  // no more threads: those that there are do the work
    }
    loop();
  }  // Joined here.
  if (error) std::rethrow_exception(error);
}

/// Tells a caller how many of `all` parallel pieces are done, one call at a time.
class Progress {
 public:
  Progress(const std::function<void(int, int)>& tell, std::size_t all)
      : tell_(tell), all_(static_cast<int>(all)) {}
  void one_more() {
    if (!tell_) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    tell_(++done_, all_);
  }

 private:
  const std::function<void(int, int)>& tell_;
  std::mutex mutex_;
  int done_ = 0, all_;
};

}  // namespace foreshard
