#pragma once

// `calibrate runs`: the training ceilings that explain measured runs best, near their priors.

#include <optional>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "study/planned_run.h"
#include "study/runs_table.h"
#include "study/training_ceilings.h"

namespace foreshard {

/// The laboratory behind a source: its leading letters ("mpt2023" and "mpt2024" are one).
std::string laboratory_of(const std::string& source_id);

/// A row of the table as the fit sees it.
struct CalibrationRow {
  std::string row_id, laboratory;
  double measured_s = 0;
  std::int64_t gpus = 0, sequence = 0, tokens = 0,
               million_parameters = 0;  ///< tokens: of a GPU and micro-batch.
  StepModel model;
};

/// Rows that can inform the ceilings: measured and planned runs in 16 bits on GPUs that a ceiling
/// concerns. Rows are simulated in parallel; the result does not depend on it.
std::vector<CalibrationRow> calibration_rows(const RunsTable& table,
                                             const CostParameters& parameters = {});

struct CeilingFit {
  CeilingFactors factors;  ///< Logarithms.
  std::vector<double> sd;  ///< Of the logarithms, given priors and rows.
  std::int64_t rows = 0, laboratories = 0;
};

/// Every factor held by its prior, laboratories weighted by the square root of their number of
/// rows. `left_out`: a laboratory whose rows take no part.
CeilingFit fit_ceilings(const std::vector<CalibrationRow>& rows, const std::string& left_out = {});

/// The fit as a calibration file of the hardware catalogue (catalogue/calibrations), with residuals
/// and the range of each factor over fits that leave one laboratory out.
Json calibration_file(const std::vector<CalibrationRow>& rows, const CeilingFit& fit,
                      const std::string& table_name);

}  // namespace foreshard
