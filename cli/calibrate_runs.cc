#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/commands.h"
#include "cli/output.h"
#include "core/json.h"
#include "study/calibrate_runs.h"

namespace foreshard::cli {
namespace {

std::string text_of(const Json& file, const CeilingFit& fit) {
  std::string out =
      fmt::format("{} rows of {} laboratories\n\n  {:<26} {:>8} {:>8} {:>18}\n", fit.rows,
                  fit.laboratories, "ceiling", "factor", "sd", "one left out");
  for (const Json& c : file["ceilings"])
    out += fmt::format("  {:<26} {:>8.4f} {:>6.1f} % {:>8.4f} - {:.4f}\n",
                       c["name"].get<std::string>(), c["factor"].get<double>(),
                       100 * c["sd"].get<double>(), c["range"][0].get<double>(),
                       c["range"][1].get<double>());
  out += "\n  residuals\n";
  for (const auto& [name, r] : file["residuals"].items())
    out += fmt::format("  {:<26} {:>4} rows, mean {:>+6.1f} %, mean absolute {:>5.1f} %\n", name,
                       r["rows"].get<int>(), 100 * r["mean_error"].get<double>(),
                       100 * r["mean_absolute_error"].get<double>());
  return out;
}

void check_laboratory(Arguments& a, const RunsTable& table) {
  if (!a.has("leave-out")) return;
  std::vector<std::string> names;
  for (const MeasuredRun& run : table.runs) names.push_back(laboratory_of(run.source_id));
  if (std::find(names.begin(), names.end(), a.text("leave-out")) != names.end()) return;
  const std::string near = nearest_name(a.text("leave-out"), names);
  a.report("leave-out", fmt::format("no row is of \"{}\"", a.text("leave-out")),
           near.empty() ? "" : "nearest: " + near);
  a.check();
}

int calibrate_runs(Arguments& a) {
  a.check();
  const RunsTable table = read_runs_table(a.positional(0));
  check_laboratory(a, table);
  const std::vector<CalibrationRow> rows = calibration_rows(table);
  const CeilingFit fit = fit_ceilings(rows, a.text("leave-out"));
  const Json file =
      calibration_file(rows, fit, std::filesystem::path(a.positional(0)).filename().string());
  if (a.has("output")) write_file_atomically(a.text("output"), file.dump(1) + "\n");
  if (a.flag("json"))
    print_json(file);
  else
    print(text_of(file, fit));
  return kOk;
}

}  // namespace

CommandSpec calibrate_runs_command() {
  CommandSpec c;
  c.name = "calibrate runs";
  c.summary = "Fits the ceilings that kernels reach in training to measured runs.";
  c.examples = {
      {"foreshard calibrate runs runs.csv -o training.json",
       "factors with uncertainty, and the file that the catalogue holds"},
      {"foreshard calibrate runs runs.csv --leave-out mpt", "the same without one laboratory"}};
  c.positionals = {{"FILE.csv", "Table of measured runs", true}};
  c.groups = {{"Question",
               {{"leave-out",
                 "LABORATORY",
                 "Use no row of this laboratory (leading letters of source_id)",
                 {},
                 false}}},
              {"Answer",
               {{"output", "FILE", "The calibration file", {}, false},
                {"json", "", "The same as a JSON document on standard output", {}, false}}}};
  c.run = calibrate_runs;
  return c;
}

}  // namespace foreshard::cli
