#pragma once

// `score runs`: measured training runs, one for each row of a table, against our prediction of the
// same job.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/cost/parameters.h"
#include "study/runs_table.h"

namespace foreshard {

/// One row's outcome. Errors are relative and signed: predicted / measured - 1.
struct RunScore {
  std::string row_id, laboratory;
  std::string target;  ///< "FSDP bf16" or "other" on A100 and H100, empty elsewhere.
  std::optional<double> measured_step_s, predicted_step_s, time_error;
  std::optional<double> time_sd;  ///< Stated for the predicted time, relative; only if asked for.
  std::optional<double> measured_memory_bytes, predicted_memory_bytes,
      memory_error;          ///< Both of the row's `mem_kind`.
  std::int64_t retries = 0;  ///< Allocator retries of the predicted step.
  bool fits = true;
  std::string skipped;  ///< Empty, or why the row cannot be expressed or predicted.
  std::vector<std::string> assumptions;  ///< What the row does not say and was assumed.
};

/// Absolute relative errors.
struct ErrorSummary {
  std::int64_t rows = 0;
  double mape = 0, p95 = 0, worst = 0;
  std::optional<double> within;  ///< Share of measured values between the stated p10 and p90.
};

struct RunScoreSummary {
  std::int64_t rows = 0, scored = 0;  ///< scored: rows with a predicted time or memory.
  std::optional<double> time_mape, time_worst, memory_mape,
      memory_worst;  ///< Where a row has that measurement.
  std::vector<std::pair<std::string, ErrorSummary>>
      groups;  ///< Of time: the targets' groups, then each laboratory.
};

struct RunScores {
  std::vector<RunScore> rows;  ///< In the table's order.
  RunScoreSummary summary;
};

/// Where the training ceilings come from.
enum class CeilingsFrom : std::uint8_t {
  kCatalogue,          ///< The committed calibration.
  kOtherLaboratories,  ///< For each laboratory a fit of this table without its rows.
  kPriors,             ///< No training row at all.
};

struct RunScoring {
  CeilingsFrom ceilings = CeilingsFrom::kCatalogue;
  bool ranges = false;  ///< Also states each prediction's uncertainty: some ten simulations a row.
};

/// Predicts every row, on all cores; the result does not depend on their number. Rows that cannot
/// be expressed carry the reason.
RunScores score_runs(const RunsTable& table, const RunScoring& scoring = {},
                     const CostParameters& parameters = {});

}  // namespace foreshard
