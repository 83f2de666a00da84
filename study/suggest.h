#pragma once

// "Try": changes of one option that were planned and simulated, not guessed.

#include <string>
#include <vector>

#include "core/units.h"
#include "study/evaluate.h"
#include "study/job.h"

namespace foreshard {

struct Suggestion {
  std::string change;  ///< As typed: "--micro-batch 2".
  Time step;
  Bytes memory_change;              ///< Of the device peak against the job as asked.
  double tokens_per_s_per_gpu = 0;  ///< 0 for a model without tokens.
  double samples_per_s_per_gpu = 0;
  double speedup = 1;  ///< Samples per second against the job as asked.
  bool fits = true;
};

inline constexpr std::size_t kMostSuggestions = 3;  ///< In one answer.

/// At most `most` changes worth knowing: those that fit where the job does not (where no single
/// option does: several at once, host memory, 16-bit states, or the smallest number of GPUs) or
/// fits with allocator retries only, those that make it faster, and the best one that would be
/// faster but does not fit. A change that fits with allocator retries only is none of them.
std::vector<Suggestion> suggest(const Job& job, const Evaluation& base,
                                std::size_t most = kMostSuggestions);

/// Share of the gathered parameters that is padding, because FSDP2 cuts each parameter into equal
/// numbers of rows: 0.5 if half of what is gathered is real.
double padded_share(const Schedule& schedule);
inline constexpr double kMuchPadding = 0.1;
/// What a reader should know of the job beside the changes: uneven rows, in words; "" if nothing.
std::string remark_on(const Job& job, const Schedule& schedule);
/// What the attention kernel of the job is on this GPU, where it is not what was named; "" else.
std::string remark_on_attention(const Job& job, const Schedule& schedule);

}  // namespace foreshard
