#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/output.h"
#include "core/format.h"
#include "core/json.h"
#include "study/runs_table.h"
#include "study/score_collectives.h"
#include "study/score_runs.h"

namespace foreshard::cli {
namespace {

Json number_or_null(const std::optional<double>& x) { return x ? Json(*x) : Json(nullptr); }

Json json_of(const RunScores& scores) {
  Json out;
  out["rows"] = Json::array();
  for (const RunScore& r : scores.rows)
    out["rows"].push_back({{"row_id", r.row_id},
                           {"measured_step_s", number_or_null(r.measured_step_s)},
                           {"predicted_step_s", number_or_null(r.predicted_step_s)},
                           {"time_error", number_or_null(r.time_error)},
                           {"measured_memory_bytes", number_or_null(r.measured_memory_bytes)},
                           {"predicted_memory_bytes", number_or_null(r.predicted_memory_bytes)},
                           {"memory_error", number_or_null(r.memory_error)},
                           {"skipped", r.skipped.empty() ? Json(nullptr) : Json(r.skipped)},
                           {"assumptions", r.assumptions}});
  const RunScoreSummary& s = scores.summary;
  out["summary"] = {{"rows", s.rows}, {"scored", s.scored}, {"time_mape", s.time_mape}, {"time_worst", s.time_worst},
                    {"memory_mape", s.memory_mape}, {"memory_worst", s.memory_worst}};
  return out;
}

std::string error_text(const std::optional<double>& e) { return e ? fmt::format("{:+.1f} %", 100 * *e) : "-"; }

std::string text_of(const RunScores& scores) {
  std::string out = fmt::format("  {:<40} {:>12} {:>12} {:>9} {:>9}\n", "row", "measured", "predicted", "time", "memory");
  for (const RunScore& r : scores.rows) {
    if (!r.skipped.empty()) {
      out += fmt::format("  {:<40} skipped: {}\n", r.row_id, r.skipped);
      continue;
    }
    const auto time = [](const std::optional<double>& s) { return s ? format_time(from_seconds(*s)) : std::string("-"); };
    out += fmt::format("  {:<40} {:>12} {:>12} {:>9} {:>9}\n", r.row_id, time(r.measured_step_s), time(r.predicted_step_s),
                       error_text(r.time_error), error_text(r.memory_error));
  }
  const RunScoreSummary& s = scores.summary;
  return out + fmt::format("\n  {} of {} rows scored; time: mean error {:.1f} %, worst {:.1f} %; memory: mean {:.1f} %, worst {:.1f} %\n",
                           s.scored, s.rows, 100 * s.time_mape, 100 * s.time_worst, 100 * s.memory_mape, 100 * s.memory_worst);
}

int score_runs_of(Arguments& a) {
  a.check();
  const RunScores scores = score_runs(read_runs_table(a.positional(0)));
  if (a.flag("json")) print_json(json_of(scores));
  else print(text_of(scores));
  return kOk;
}

int score_collectives_of(Arguments& a) {
  a.check();
  const CollectiveScore score = score_collectives(
      a.positional(0), a.flag("calibrate") ? CollectiveScoring::kCalibrated : CollectiveScoring::kCatalogue);
  if (a.flag("json")) print_json(to_json(score));
  else print(to_text(score));
  return kOk;
}

}  // namespace

CommandSpec score_runs_command() {
  CommandSpec c;
  c.name = "score runs";
  c.summary = "Predicts measured training runs of a table and prints the error of each.";
  c.examples = {{"foreshard score runs runs.csv", "error of every row, and in total"}};
  c.positionals = {{"FILE.csv", "Table of measured runs", true}};
  c.groups = {{"Answer", {{"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = score_runs_of;
  return c;
}

CommandSpec score_collectives_command() {
  CommandSpec c;
  c.name = "score collectives";
  c.summary = "Predicts measured collectives of an index of nccl-tests tables.";
  c.examples = {{"foreshard score collectives index.json", "from the hardware catalogue alone"},
                {"foreshard score collectives index.json --calibrate", "fitted on the even rows, scored on the odd ones"}};
  c.positionals = {{"INDEX.json", "Index with its tables beside it", true}};
  c.groups = {{"Answer",
               {{"calibrate", "", "Fit on the even rows, score the odd ones", {}, false},
                {"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = score_collectives_of;
  return c;
}

}  // namespace foreshard::cli
