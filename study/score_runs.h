#pragma once

// `score runs`: measured training runs, one for each row of a table, against our prediction of the same job.

#include <optional>
#include <string>
#include <vector>

#include "sim/cost/parameters.h"
#include "study/runs_table.h"

namespace foreshard {

/// One row's outcome. Errors are relative and signed: predicted / measured - 1.
struct RunScore {
  std::string row_id, laboratory;
  std::optional<double> measured_step_s, predicted_step_s, time_error;
  std::optional<double> measured_memory_bytes, predicted_memory_bytes, memory_error;   ///< Both of the row's `mem_kind`.
  std::string skipped;                     ///< Empty, or why the row cannot be expressed or predicted.
  std::vector<std::string> assumptions;    ///< What the row does not say and was assumed.
};

struct RunScoreSummary {
  std::int64_t rows = 0, scored = 0;       ///< scored: rows with a predicted time or memory.
  double time_mape = 0, time_worst = 0, memory_mape = 0, memory_worst = 0;   ///< Absolute relative errors.
};

struct RunScores {
  std::vector<RunScore> rows;              ///< In the table's order.
  RunScoreSummary summary;
};

/// Predicts every row. Rows that cannot be expressed carry the reason; nothing is fitted here.
RunScores score_runs(const RunsTable& table, const CostParameters& parameters = {});

}  // namespace foreshard
