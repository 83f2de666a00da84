#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/keep_memory.h"

namespace foreshard {

/// Calls `work(i)` for i = 0 .. n - 1 on all cores; they begin in this order, and `work` must not
/// depend on it. When all have stopped the exception of the smallest i that threw is thrown again:
/// the one that a loop would have met.
template <typename Work>
void parallel_for(std::size_t n, const Work& work) {
  const std::size_t threads =
      std::min<std::size_t>(n, std::max(1u, std::thread::hardware_concurrency()));
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
  std::vector<std::thread> pool;
  const auto on_thread = [&loop] {
    keep_freed_memory_of_thread();
    loop();
  };
  for (std::size_t t = 1; t < threads; ++t) pool.emplace_back(on_thread);
  loop();
  for (std::thread& t : pool) t.join();
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
