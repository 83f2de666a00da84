#include "core/parallel.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>

#include "tests/few_threads.h"

namespace foreshard {
namespace {

// A loop would stop at 3; 7 throws long before it does.
TEST(ParallelFor, ThrowsWhatALoopWouldHaveThrown) {
  std::atomic<bool> late = false;
  const auto work = [&](std::size_t i) {
    if (i == 3) {
      for (int k = 0; k < 100 && !late; ++k)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      throw std::runtime_error("at 3");
    }
    if (i == 7) {
      late = true;
      throw std::runtime_error("at 7");
    }
  };
  try {
    parallel_for(16, work, 4);
    FAIL() << "no exception";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "at 3");
  }
}

/// The threads that did the work of 64 pieces, each once.
std::size_t threads_that_worked(std::size_t most_threads) {
  std::vector<int> calls(64, 0);
  std::set<std::thread::id> threads;
  std::mutex mutex;
  parallel_for(
      calls.size(),
      [&](std::size_t i) {
        ++calls[i];
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const std::scoped_lock lock(mutex);
        threads.insert(std::this_thread::get_id());
      },
      most_threads);
  EXPECT_EQ(calls, std::vector<int>(64, 1));
  return threads.size();
}

TEST(ParallelFor, UsesNoMoreThreadsThanItMay) {
  EXPECT_EQ(threads_that_worked(1), 1u);
  EXPECT_LE(threads_that_worked(3), 3u);
}

TEST(ParallelFor, GoesOnWithTheThreadsItGets) {
  for (int allowed = 0; allowed < 4; ++allowed) {
    const FewThreads few(allowed);
    EXPECT_LE(threads_that_worked(8), static_cast<std::size_t>(allowed) + 2);
  }
}

}  // namespace
}  // namespace foreshard
