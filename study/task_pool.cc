#include "study/task_pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/keep_memory.h"
#include "core/parallel.h"

namespace foreshard {

void TaskPool::add(Order order, std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  (order == Order::kAwaited ? awaited_ : any_time_).push_back({added_++, std::move(work)});
  if (!started_) return;
  if (idle_ > 0)
    changed_.notify_one();
  else
    add_thread();
}

void TaskPool::run() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    started_ = true;
    for (std::size_t i = 1; i < added_; ++i) add_thread();
  }
  loop();
  threads_.clear();  // Joins: nothing waits and nothing runs, so nothing adds threads any more.
  if (error_) std::rethrow_exception(error_);
}

/// Up to one for each core; those that there are do the work where the machine gives no more.
void TaskPool::add_thread() {
  if (threads_.size() + 1 >= cores()) return;
  try {
    threads_.emplace_back([this] {
      keep_freed_memory_of_thread();
      loop();
    });
  } catch (const std::system_error&) {
  }
}

void TaskPool::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [this] { return waiting() || running_ == 0; });
    --idle_;
    if (!waiting()) return;
    const Task task = take();
    ++running_;
    lock.unlock();
    std::exception_ptr error;
    try {
      task.work();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) failed(task.number, std::move(error));
    if (--running_ == 0 && !waiting()) changed_.notify_all();
  }
}

TaskPool::Task TaskPool::take() {
  std::deque<Task>& queue = awaited_.empty() ? any_time_ : awaited_;
  Task task = std::move(queue.front());
  queue.pop_front();
  return task;
}

void TaskPool::failed(std::size_t number, std::exception_ptr error) {
  if (number < failed_) failed_ = number, error_ = std::move(error);
  awaited_.clear();
  any_time_.clear();
}

}  // namespace foreshard
