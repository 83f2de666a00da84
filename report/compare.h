#pragma once

// Predicted against measured, or any trace against any other of the same job.

#include <cstdint>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "report/trace_document.h"

namespace foreshard {

/// One thing that differs. `contribution` is what it adds to the measured step (negative: saves),
/// per step and rank.
struct TraceDifference {
  std::string what;
  std::string predicted, measured;
  Time contribution;
};

struct Comparison {
  bool order_equal = true, bytes_equal = true;
  std::int64_t instructions = 0;        ///< Of one rank and step that were matched.
  std::int64_t ranks = 0;               ///< Compared.
  Bytes predicted_peak, measured_peak;  ///< Allocated, of the rank with the largest difference.
  Time predicted_step,
      measured_step;  ///< Predicted: the steady step; measured: the median of the steady steps.
  std::int64_t measured_steps = 0;
  std::int64_t overruns = 0;
  bool timing_valid = true;
  Timing predicted_timing = Timing::kPredicted, measured_timing = Timing::kPredicted;
  std::vector<TraceDifference> differences;  ///< Order, bytes and peak first, then by contribution.

  /// Nothing could be matched: the traces are of different plans.
  bool other_plans() const { return !order_equal && instructions == 0 && !differences.empty(); }
  Bytes peak_difference() const { return measured_peak - predicted_peak; }
  /// Both times are of one kind of machine; else neither ratio nor differences are of times.
  bool times_compare() const { return comparable(predicted_timing, measured_timing); }
  double step_ratio() const {
    return predicted_step.value == 0 ? 0 : measured_step / predicted_step;
  }
};

/// Matches every measured rank and step with the predicted rank of the same program and the
/// predicted step of the same number (the last one where the prediction has fewer). InputError if
/// the traces are not of one job.
Comparison compare(const TraceDocument& predicted, const TraceDocument& measured);

/// For people, about a screen.
std::string text_of(const Comparison& comparison);
/// The keys of the contract: order_equal, bytes_equal, peak_bytes_difference, step_time_ratio (of
/// measured to predicted; says nothing of either where `times_compare` is false), differences.
Json to_json(const Comparison& comparison);

}  // namespace foreshard
