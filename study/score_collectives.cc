#include "study/score_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/json.h"

namespace foreshard {
namespace {

CollectiveModel model_of(const TableMachine& machine) {
  return CollectiveModel(machine.profile, machine.placement, CollectiveTuning{});
}

ScoredTable score_table(const CollectiveTable& table, CollectiveScoring scoring) {
  const TableMachine machine = machine_of_table(table);
  ScoredTable scored;
  scored.id = table.id;
  scored.hardware = machine.hardware;
  scored.doubts = machine.doubts;
  const auto add = [&](const CollectiveRow& row, double predicted_s) {
    scored.rows.push_back({row.bytes, row.seconds(), predicted_s});
  };
  if (scoring == CollectiveScoring::kCatalogue || table.rows.size() < 2) {
    const auto model = model_of(machine);
    for (const auto& row : table.rows)
      add(row, benchmark_seconds(model, table.kind, row.bytes, machine.overhead));
  } else {
    CalibrationInput input{machine.profile, machine.placement, table.kind, machine.overhead, {}};
    for (std::size_t i = 0; i < table.rows.size(); i += 2) {
      input.samples.push_back({table.rows[i].bytes, table.rows[i].undisturbed_seconds()});
    }
    const auto calibration = calibrate_collectives(input);
    for (std::size_t i = 1; i < table.rows.size(); i += 2)
      add(table.rows[i], calibration.predict(table.rows[i].bytes));
    scored.warnings = calibration.warnings;
  }
  for (const auto& row : scored.rows) {
    scored.mape += std::abs(row.error()) / static_cast<double>(scored.rows.size());
    scored.worst = std::max(scored.worst, std::abs(row.error()));
  }
  return scored;
}

}  // namespace

CollectiveScore score_collectives(const std::filesystem::path& index, CollectiveScoring scoring) {
  CollectiveScore score;
  for (const auto& table : read_collective_index(index)) {
    if (!table.unsupported.empty()) {
      score.skipped.push_back({table.id, table.unsupported});
      continue;
    }
    try {
      score.tables.push_back(score_table(table, scoring));
    } catch (const InputError& e) {
      score.skipped.push_back({table.id, e.what()});
    }
  }
  int clear = 0;
  for (const auto& table : score.tables) {
    score.mape += table.mape / static_cast<double>(score.tables.size());
    if (!table.doubts.empty()) continue;
    score.mape_clear += table.mape;
    ++clear;
  }
  if (clear > 0) score.mape_clear /= clear;
  return score;
}

Json to_json(const CollectiveScore& score) {
  Json json;
  json["tables"] = Json::array();
  for (const auto& table : score.tables) {
    Json rows = Json::array();
    for (const auto& row : table.rows) {
      rows.push_back({{"bytes", row.bytes.value},
                      {"measured_s", row.measured_s},
                      {"predicted_s", row.predicted_s}});
    }
    json["tables"].push_back({{"id", table.id},
                              {"hardware", table.hardware},
                              {"mape", table.mape},
                              {"worst", table.worst},
                              {"doubts", table.doubts},
                              {"warnings", table.warnings},
                              {"rows", std::move(rows)}});
  }
  json["skipped"] = Json::array();
  for (const auto& table : score.skipped)
    json["skipped"].push_back({{"id", table.id}, {"reason", table.reason}});
  json["summary"] = {{"tables", score.tables.size()},
                     {"mape", score.mape},
                     {"mape_without_doubts", score.mape_clear}};
  return json;
}

std::string to_text(const CollectiveScore& score) {
  std::vector<const ScoredTable*> order;
  for (const auto& table : score.tables) order.push_back(&table);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return a->mape < b->mape; });
  std::string text = fmt::format("{:<36} {:>6} {:>7}  {}\n", "table", "mean", "worst", "hardware");
  for (const auto* table : order) {
    text += fmt::format(
        "{:<36} {:>5.1f}% {:>6.1f}%  {}{}\n", table->id, 100 * table->mape, 100 * table->worst,
        table->hardware,
        table->doubts.empty() ? "" : fmt::format("  ({})", fmt::join(table->doubts, "; ")));
  }
  for (const auto& table : score.skipped)
    text += fmt::format("{:<36} skipped: {}\n", table.id, table.reason);
  text += fmt::format("mean of {} tables {:.2f} %, of those without doubts {:.2f} %\n",
                      score.tables.size(), 100 * score.mape, 100 * score.mape_clear);
  return text;
}

}  // namespace foreshard
