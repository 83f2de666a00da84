#pragma once

#include <optional>

#include "study/evaluate.h"
#include "study/job.h"
#include "study/job_change.h"
#include "study/suggest.h"

namespace foreshard {

/// A change of a job: planned, then simulated, then compared with the job as it is.
class ChangeTrial {
 public:
  ChangeTrial(const Job& job, JobChange change);

  /// Once, before run().
  void plan();
  /// `base`: what memory the job takes of its device, as settled_memory() finds it. `own`: of the
  /// job's schedule.
  void run(const MemoryResult& base, const Simulator& own);
  /// What the change gives; nothing if the framework refuses it, if it would fit with allocator
  /// retries only, if neither it nor the job fits, or if it would use up the headroom that the job
  /// has (tune would not choose it).
  std::optional<Suggestion> suggestion(const Job& job, const Evaluation& base) const;

 private:
  bool simulate(const Simulator& simulator, const MemoryResult& base);

  JobChange change_;
  Job changed_;
  bool refused_ = false;
  Evaluation found_;                    ///< Its schedule: until it has run.
  std::optional<Simulator> simulator_;  ///< Of that schedule.
  double tokens_per_second_per_gpu_ = 0;
};

}  // namespace foreshard
