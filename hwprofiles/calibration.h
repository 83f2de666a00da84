#pragma once

// Calibrated numbers of the catalogue: files in catalogue/calibrations, as `foreshard calibrate
// runs` writes them. They replace the numbers of the GPU files, which hold the priors (values that
// no training run has touched).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "hwprofiles/profile.h"

namespace foreshard {

/// Replaces the efficiencies of `gpu` (by its canonical catalogue `name`) that calibration files of
/// the catalogue give; each keeps the replaced value as its `prior`.
void apply_catalogue_calibrations(std::string_view name, GpuProfile& gpu);

/// The profile as it was before calibration: every fact with a prior takes it back.
void forget_calibration(GpuProfile& gpu);

/// Source of an efficiency in the GPU's own file: of what forget_calibration() takes back. Empty if
/// neither the file nor the one that it takes efficiencies from says.
std::string uncalibrated_source(std::string_view gpu, std::string_view efficiency);

/// What the runs behind the training calibration span.
struct CalibrationCoverage {
  struct Range {
    std::int64_t least = 0, most = 0;
  };
  Range gpus, sequence, tokens, million_parameters;  ///< tokens: of a GPU and micro-batch.
};

/// Of the catalogue's training calibration; nothing if it does not say.
std::optional<CalibrationCoverage> training_coverage();

}  // namespace foreshard
