#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "study/change_trial.h"
#include "study/suggest.h"
#include "study/task_pool.h"

namespace foreshard {

/// suggest() beside other studies of the job: changes are planned from the beginning, and tried as
/// soon as the job's memory is known.
class SuggestionStudy {
 public:
  /// Adds its first tasks. Job and pool must outlive it, and it the pool's run.
  SuggestionStudy(const Job& job, TaskPool& pool);

  /// Once; also from a task. `memory`: the job's, as settled_memory() finds it. `own`: of the job's
  /// schedule; must outlive the pool's run.
  void begin(const MemoryResult& memory, const Simulator& own);
  /// Once, after begin(): what is chosen by its speed against the job's is tried. `base` must
  /// outlive the pool's run.
  void compare(const Evaluation& base);
  /// After the pool has run. At most `most`, as suggest().
  std::vector<Suggestion> finish(const Evaluation& base, std::size_t most) const;

 private:
  struct Entry {
    Entry(const Job& job, JobChange change) : trial(job, std::move(change)) {}
    ChangeTrial trial;
    std::atomic<int> ready{0};  ///< 2: planned, and the job's memory is known.
  };

  void add(Entry& entry);
  void ready(Entry& entry);

  const Job& job_;
  TaskPool& pool_;
  /// What a job that fits has memory for; what is tried of any; the allocator's option.
  std::deque<Entry> first_, early_, last_;
  std::optional<Suggestion> mesh_;
  MemoryResult memory_;
  const Simulator* own_ = nullptr;
};

}  // namespace foreshard
