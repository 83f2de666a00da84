#pragma once

// `score ratios`: published pairs of runs that differ in one setting (network, sharding,
// accumulation, offload), against the ratio of our predictions of both. A ratio tests exposed
// communication where absolute times would test kernels.

#include <optional>
#include <string>
#include <vector>

#include "study/job.h"

namespace foreshard {

/// What a side of a ratio measures.
enum class RatioMeasure : std::uint8_t {
  kTokensPerGpu,  ///< Tokens/s of one GPU.
  kTokens,        ///< Tokens/s of the job.
  kStepTime,      ///< Seconds of a step.
  kForwardRate,   ///< Forward passes/s: one over the next.
  kForwardTime,   ///< From the start of the step to the end of the last forward kernel.
  kBackwardTime,  ///< From there to the end of the last backward kernel or collective.
  kPeakMemory,    ///< Bytes allocated at the peak.
  kPeakReserved,  ///< Bytes that the allocator holds at its peak.
};
std::string_view name_of(RatioMeasure measure);

/// How much of the two runs the source states.
enum class Completeness : std::uint8_t {
  kComplete,    ///< Model, GPUs, network, batch and precision.
  kNoLinkRate,  ///< All but the rate of a link, which the case assumes.
  kPartial,     ///< More is missing; scored apart.
};
std::string_view name_of(Completeness completeness);

struct RatioSide {
  Job job;
  RatioMeasure measure = RatioMeasure::kTokensPerGpu;
};

struct RatioCase {
  std::string id, series, source, what;
  Completeness completeness = Completeness::kComplete;
  double ratio = 1;  ///< Measured: side a over side b.
  RatioSide a, b;
  std::vector<std::string> assumed;  ///< What the source does not say.
  std::string explained;  ///< Why a difference from the measurement is expected; may be empty.
  std::string refusal;    ///< Not empty: the pair cannot be expressed, and why.
};

struct RatioScore {
  const RatioCase* of = nullptr;
  std::optional<double> predicted, error;  ///< error = predicted / measured - 1.
  bool sign_right = false;                 ///< Both ratios on the same side of 1.
  Time step_a, step_b;
  Time exposed_a, exposed_b;  ///< Communication that the compute stream waits for.
  std::string skipped;        ///< Empty, or why there is no prediction.
};

struct RatioSummary {
  std::int64_t cases = 0, scored = 0, signs_right = 0, within_10 = 0, within_20 = 0;
  double mean_error = 0, worst_error = 0;  ///< Absolute, of those scored.
};

struct RatioScores {
  std::vector<RatioScore> rows;
  RatioSummary stated;  ///< Complete ones, and those that lack a link rate.
  RatioSummary partial;
};

/// Predicts both sides of every case; the cases must outlive the answer. One case's failure is that
/// case's answer.
RatioScores score_ratios(const std::vector<RatioCase>& cases);

}  // namespace foreshard
