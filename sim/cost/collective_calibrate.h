#pragma once

// Fits the collective model to measured times of one machine.

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "hwprofiles/profile.h"
#include "sim/cost/collective.h"

namespace foreshard {

/// What the benchmark program adds to device time: a floor (calls cannot follow each other faster
/// than the host launches them) and a part added to each call.
struct BenchmarkOverhead {
  double floor_us = 0;
  double added_us = 0;
};

struct CollectiveSample {
  Bytes bytes;
  double seconds = 0;
};

/// What `calibrate` needs to know: machine, group, collective, times (ascending in bytes).
struct CalibrationInput {
  HardwareProfile profile;
  GroupPlacement placement;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  BenchmarkOverhead overhead;  ///< expected; the fit may scale it
  std::vector<CollectiveSample> samples;
};

/// One size: what was measured, what the fitted parameters alone predict.
struct CalibrationResidual {
  Bytes bytes;
  double measured_s = 0;
  double fitted_s = 0;
  double error() const { return fitted_s / measured_s - 1; }
  /// Logarithm of what `predict` multiplies with here.
  double correction() const { return std::log(measured_s / fitted_s); }
};

/// The outcome. `tuning` holds the physical parameters; the residuals are what these leave.
struct CollectiveCalibration {
  CollectiveTuning tuning;
  BenchmarkOverhead overhead;
  std::vector<CalibrationResidual> residuals;
  double mean_error = 0;  ///< mean of |error()|
  double worst_error = 0;
  std::vector<std::string>
      warnings;  ///< link classes far below their kind, sizes that the model does not explain
  CalibrationInput input;

  /// Seconds for a size: the fitted model, corrected by the residuals of the neighbouring measured
  /// sizes (linear in the logarithm of the size; the outermost residual holds beyond the ends).
  double predict(Bytes bytes) const;
};

/// Seconds that the model predicts for a benchmark row.
double benchmark_seconds(const CollectiveModel& model, CollectiveKind kind, Bytes bytes,
                         const BenchmarkOverhead& overhead);

/// Fits the seven scales of CollectiveTuning and that of the overhead by minimising the Huber loss
/// (8 %) of the logarithmic errors, each parameter held to its catalogue value by a prior (latency
/// and overhead factor 1.5, rates factor 1.15, network rate factor 1.25). Deterministic pattern
/// search. InputError without samples.
CollectiveCalibration calibrate_collectives(const CalibrationInput& input);

/// The same for several tables of one machine (all-gather and all-reduce, one node and two): one
/// set of scales for all of them, each table with equal weight; one result for each input.
std::vector<CollectiveCalibration> calibrate_jointly(std::span<const CalibrationInput> inputs);

/// The profile with the fitted scales as facts of kind "calibrated" under `collectives`.
HardwareProfile with_calibration(HardwareProfile profile, const CollectiveCalibration& calibration,
                                 const std::string& source);

}  // namespace foreshard
