#pragma once

// How large can a job be made before it no longer fits?

#include <cstdint>
#include <optional>

#include "study/evaluate.h"
#include "study/job.h"

namespace foreshard {

enum class LargestOf { kMicroBatch, kSequence };

struct LargestResult {
  std::int64_t value = 0;        ///< 0: not even the smallest fits.
  std::int64_t smallest = 1;     ///< That was tried.
  std::int64_t granularity = 1;  ///< Values are multiples of it, or the model's limit.
  /// What stops it: the next multiple does not fit, or there is none (the model's positions, or the
  /// end of the search).
  enum class Stop { kMemory, kModel, kSearch } stop = Stop::kMemory;
  std::optional<Evaluation> evaluation;  ///< At `value`.
};

/// The largest micro-batch, or length of sequence in steps of 128 tokens, that fits without
/// allocator retries while the next does not: by doubling and bisection, each plan simulated. Where
/// the allocator makes fits come and go, larger ones may exist. InputError if the job is impossible
/// at its smallest.
LargestResult largest(const Job& job, LargestOf what, const SimulationOptions& options = {});

/// The job with that micro-batch or sequence.
Job with_value(const Job& job, LargestOf what, std::int64_t value);

}  // namespace foreshard
