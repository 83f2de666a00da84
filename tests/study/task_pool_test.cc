#include "study/task_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/few_threads.h"

namespace foreshard {
namespace {

// Each of 2^10 - 1 tasks adds the two below it; all have run when run() comes back.
TEST(TaskPool, RunsTasksThatTasksAdd) {
  TaskPool pool;
  std::vector<std::atomic<int>> times(1 << 10);
  std::function<void(std::size_t)> visit = [&](std::size_t node) {
    ++times[node];
    for (const std::size_t below : {2 * node, 2 * node + 1}) {
      if (below >= times.size()) continue;
      const auto order = below % 3 == 0 ? TaskPool::Order::kAwaited : TaskPool::Order::kAnyTime;
      pool.add(order, [&visit, below] { visit(below); });
    }
  };
  pool.add(TaskPool::Order::kAnyTime, [&] { visit(1); });
  pool.run();
  for (std::size_t i = 1; i < times.size(); ++i) EXPECT_EQ(times[i], 1) << i;
}

TEST(TaskPool, GoesOnWithoutThreads) {
  const FewThreads few(0);
  TaskPool pool;
  std::atomic<int> done = 0;
  for (int i = 0; i < 16; ++i)
    pool.add(TaskPool::Order::kAnyTime,
             [&] { pool.add(TaskPool::Order::kAwaited, [&] { ++done; }); });
  pool.run();
  EXPECT_EQ(done, 16);
}

TEST(TaskPool, NothingToDoIsDone) { TaskPool().run(); }

// The second one throws long before the first does (on one core, the first never meets it).
TEST(TaskPool, ThrowsWhatWasAddedFirst) {
  std::atomic<bool> late = false;
  TaskPool pool;
  pool.add(TaskPool::Order::kAnyTime, [&] {
    for (int k = 0; k < 100 && !late; ++k)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    throw std::runtime_error("first");
  });
  pool.add(TaskPool::Order::kAnyTime, [&] {
    late = true;
    throw std::runtime_error("second");
  });
  try {
    pool.run();
    FAIL() << "no exception";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "first");
  }
}

// Tasks that wait give way to awaited ones: by one thread that is held while both are added.
TEST(TaskPool, AwaitedTasksComeFirst) {
  TaskPool pool;
  std::vector<int> order;
  std::mutex mutex;
  const auto note = [&](int i) {
    const std::lock_guard<std::mutex> lock(mutex);
    order.push_back(i);
  };
  const std::size_t threads = std::max(1u, std::thread::hardware_concurrency());
  std::atomic<std::size_t> held = 0;
  // All threads are held until every task is there; then one of them takes all that is left.
  std::atomic<bool> all_added = false;
  std::atomic<int> done = 0;
  for (std::size_t t = 0; t < threads; ++t)
    pool.add(TaskPool::Order::kAwaited, [&, t] {
      ++held;
      while (held < threads) std::this_thread::yield();
      if (t == 0) {
        for (int i = 0; i < 4; ++i)
          pool.add(i % 2 == 0 ? TaskPool::Order::kAnyTime : TaskPool::Order::kAwaited, [&, i] {
            note(i);
            ++done;
          });
        all_added = true;
      }
      while (!all_added || (t != 0 && done < 4)) std::this_thread::yield();
    });
  pool.run();
  EXPECT_EQ(order, (std::vector<int>{1, 3, 0, 2}));
}

}  // namespace
}  // namespace foreshard
