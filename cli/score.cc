#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/commands.h"
#include "cli/output.h"
#include "core/format.h"
#include "core/json.h"
#include "study/runs_table.h"
#include "study/score_collectives.h"
#include "study/score_runs.h"

namespace foreshard::cli {
namespace {

Json json_of(const RunScores& scores) {
  Json out;
  out["rows"] = Json::array();
  for (const RunScore& r : scores.rows)
    out["rows"].push_back({{"row_id", r.row_id},
                           {"measured_step_s", or_null(r.measured_step_s)},
                           {"predicted_step_s", or_null(r.predicted_step_s)},
                           {"time_error", or_null(r.time_error)},
                           {"time_sd", or_null(r.time_sd)},
                           {"measured_memory_bytes", or_null(r.measured_memory_bytes)},
                           {"predicted_memory_bytes", or_null(r.predicted_memory_bytes)},
                           {"memory_error", or_null(r.memory_error)},
                           {"laboratory", r.laboratory},
                           {"target", r.target},
                           {"allocator_retries", r.retries},
                           {"fits", r.fits},
                           {"skipped", r.skipped.empty() ? Json(nullptr) : Json(r.skipped)},
                           {"assumptions", r.assumptions}});
  const RunScoreSummary& s = scores.summary;
  out["summary"] = {{"rows", s.rows},
                    {"scored", s.scored},
                    {"time_mape", or_null(s.time_mape)},
                    {"time_worst", or_null(s.time_worst)},
                    {"memory_mape", or_null(s.memory_mape)},
                    {"memory_worst", or_null(s.memory_worst)}};
  out["groups"] = Json::array();
  for (const auto& [name, g] : s.groups)
    out["groups"].push_back({{"group", name},
                             {"rows", g.rows},
                             {"time_mape", g.mape},
                             {"time_p95", g.p95},
                             {"time_worst", g.worst},
                             {"time_within", or_null(g.within)}});
  return out;
}

std::string error_text(const std::optional<double>& e) {
  return e ? fmt::format("{:+.1f} %", 100 * *e) : "-";
}

std::string text_of(const RunScores& scores) {
  std::string out = fmt::format("  {:<40} {:>12} {:>12} {:>9} {:>9}\n", "row", "measured",
                                "predicted", "time", "memory");
  for (const RunScore& r : scores.rows) {
    if (!r.skipped.empty()) {
      out += fmt::format("  {:<40} skipped: {}\n", r.row_id, r.skipped);
      continue;
    }
    const auto time = [](const std::optional<double>& s) {
      return s ? format_time(from_seconds(*s)) : std::string("-");
    };
    out +=
        fmt::format("  {:<40} {:>12} {:>12} {:>9} {:>9}\n", r.row_id, time(r.measured_step_s),
                    time(r.predicted_step_s), error_text(r.time_error), error_text(r.memory_error));
  }
  const RunScoreSummary& s = scores.summary;
  out += fmt::format("\n  {} of {} rows scored", s.scored, s.rows);
  if (s.time_mape)
    out += fmt::format("; time: mean error {:.1f} %, worst {:.1f} %", 100 * *s.time_mape,
                       100 * *s.time_worst);
  if (s.memory_mape)
    out += fmt::format("; memory: mean {:.1f} %, worst {:.1f} %", 100 * *s.memory_mape,
                       100 * *s.memory_worst);
  out += "\n";
  for (const auto& [name, g] : s.groups)
    out += fmt::format(
        "  {:<40} {:>4} rows, time: mean {:>5.1f} %, 95th percentile {:>5.1f} %, worst {:>5.1f} "
        "%{}\n",
        name, g.rows, 100 * g.mape, 100 * g.p95, 100 * g.worst,
        g.within ? fmt::format(", {:.0f} % between p10 and p90", 100 * *g.within) : "");
  return out;
}

/// The rows whose predicted time is furthest off, worst first.
std::string worst_rows(const RunScores& scores, std::size_t n) {
  std::vector<const RunScore*> rows;
  for (const RunScore& r : scores.rows)
    if (r.time_error) rows.push_back(&r);
  std::stable_sort(rows.begin(), rows.end(), [](const RunScore* a, const RunScore* b) {
    return std::abs(*a->time_error) > std::abs(*b->time_error);
  });
  std::string out = "\n  worst rows\n";
  for (std::size_t i = 0; i < std::min(n, rows.size()); ++i)
    out += fmt::format("  {:<40} {}\n", rows[i]->row_id, error_text(rows[i]->time_error));
  return out;
}

int score_runs_of(Arguments& a) {
  const auto worst = static_cast<std::size_t>(a.integer("worst", 0, 0, 1'000'000));
  const bool out = a.flag("leave-one-laboratory-out"), none = a.flag("no-rows");
  if (out && none)
    a.report("no-rows", "and --leave-one-laboratory-out exclude each other", "choose one");
  a.check();
  const CeilingsFrom from = out    ? CeilingsFrom::kOtherLaboratories
                            : none ? CeilingsFrom::kPriors
                                   : CeilingsFrom::kCatalogue;
  const RunScores scores = score_runs(read_runs_table(a.positional(0)), {from, a.flag("ranges")});
  if (a.flag("json"))
    print_json(json_of(scores));
  else
    print(text_of(scores) + (worst > 0 ? worst_rows(scores, worst) : ""));
  return kOk;
}

int score_collectives_of(Arguments& a) {
  a.check();
  const CollectiveScore score =
      score_collectives(a.positional(0), a.flag("calibrate") ? CollectiveScoring::kCalibrated
                                                             : CollectiveScoring::kCatalogue);
  if (a.flag("json"))
    print_json(to_json(score));
  else
    print(to_text(score));
  return kOk;
}

}  // namespace

CommandSpec score_runs_command() {
  CommandSpec c;
  c.name = "score runs";
  c.summary = "Predicts measured training runs of a table and prints the error of each.";
  c.examples = {{"foreshard score runs runs.csv", "error of every row, and in total"},
                {"foreshard score runs runs.csv --leave-one-laboratory-out --worst 10",
                 "no laboratory's rows inform its own score"}};
  c.positionals = {{"FILE.csv", "Table of measured runs", true}};
  c.groups = {{"Question",
               {{"leave-one-laboratory-out",
                 "",
                 "Predict each laboratory with ceilings fitted to the others",
                 {},
                 false},
                {"no-rows", "", "Predict with the priors: no training row used", {}, false},
                {"ranges",
                 "",
                 "Also state the uncertainty of each time, and how many measured ones it holds",
                 {},
                 false}}},
              {"Answer",
               {{"worst", "N", "Also list the N rows furthest off", {}, false},
                {"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = score_runs_of;
  return c;
}

CommandSpec score_collectives_command() {
  CommandSpec c;
  c.name = "score collectives";
  c.summary = "Predicts measured collectives of an index of nccl-tests tables.";
  c.examples = {{"foreshard score collectives index.json", "from the hardware catalogue alone"},
                {"foreshard score collectives index.json --calibrate",
                 "fitted on the even rows, scored on the odd ones"}};
  c.positionals = {{"INDEX.json", "Index with its tables beside it", true}};
  c.groups = {{"Answer",
               {{"calibrate", "", "Fit on the even rows, score the odd ones", {}, false},
                {"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = score_collectives_of;
  return c;
}

}  // namespace foreshard::cli
