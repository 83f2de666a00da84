#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace foreshard {

/// Tasks that run on all cores and may add further ones: studies whose parts wait for one another.
/// What a task finds must not depend on which others have run, but for the one that added it.
class TaskPool {
 public:
  /// Of the tasks that could begin those that others come after do so first.
  enum class Order : std::uint8_t { kAwaited, kAnyTime };

  /// Before run(), or from a task.
  void add(Order order, std::function<void()> work);
  /// Until all are done, those that come meanwhile too; once. If tasks throw, the others are
  /// dropped, and the exception of the one that was added first is thrown again.
  void run();

 private:
  struct Task {
    std::size_t number = 0;  ///< In the order of adding.
    std::function<void()> work;
  };

  void loop();
  bool waiting() const { return !awaited_.empty() || !any_time_.empty(); }
  Task take();
  void failed(std::size_t number, std::exception_ptr error);
  void add_thread();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> awaited_, any_time_;
  std::size_t added_ = 0, running_ = 0, idle_ = 0;
  bool started_ = false;
  std::size_t failed_ = SIZE_MAX;  ///< Task that threw `error_`.
  std::exception_ptr error_;
  std::vector<std::jthread> threads_;  ///< Beside the one that has called run(); ended first.
};

}  // namespace foreshard
