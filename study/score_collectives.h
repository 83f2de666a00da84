#pragma once

// Predicted against measured collectives (`foreshard score collectives`, docs/collectives.md).

#include <filesystem>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "sim/cost/collective_calibrate.h"
#include "sim/cost/collective_table.h"

namespace foreshard {

/// What a table's description says about its machine, in terms of the catalogue.
struct TableMachine {
  HardwareProfile profile;
  GroupPlacement placement;
  BenchmarkOverhead overhead;
  std::string hardware;             ///< the name that would be typed after --on
  std::vector<std::string> doubts;  ///< what the description leaves open or the source calls poor
};
/// Reads GPU, machine and network of a table. InputError if it names no known GPU.
TableMachine machine_of_table(const CollectiveTable& table);

/// What a table that ran on `profile` gives `calibrate_jointly` (ranks, nodes and launch habit from
/// the table).
CalibrationInput calibration_input(const CollectiveTable& table, const HardwareProfile& profile);

struct ScoredRow {
  Bytes bytes;
  double measured_s = 0, predicted_s = 0;
  double error() const { return predicted_s / measured_s - 1; }
};

struct ScoredTable {
  std::string id, hardware;
  std::vector<std::string> doubts;
  double mape = 0, worst = 0;
  std::vector<ScoredRow> rows;
  std::vector<std::string> warnings;  ///< of the calibration
};

/// A table that was left out, and why.
struct SkippedTable {
  std::string id, reason;
};

struct CollectiveScore {
  std::vector<ScoredTable> tables;
  std::vector<SkippedTable> skipped;
  double mape = 0;        ///< mean over the tables
  double mape_clear = 0;  ///< over those whose description leaves no doubt
};

enum class CollectiveScoring { kCatalogue, kCalibrated };

/// Scores every table of an index: from the catalogue alone, all rows; or calibrated on the even
/// rows (0, 2, ...), the odd ones scored. Tables of a collective or a GPU that the project does not
/// know are skipped with the reason.
CollectiveScore score_collectives(const std::filesystem::path& index, CollectiveScoring scoring);

/// tables [{id, hardware, mape, worst, doubts, warnings, rows [{bytes, measured_s, predicted_s}]}],
/// skipped [{id, reason}], summary {tables, mape, mape_without_doubts}.
Json to_json(const CollectiveScore& score);
/// A table for people, worst last.
std::string to_text(const CollectiveScore& score);

}  // namespace foreshard
