#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/commands.h"
#include "cli/output.h"
#include "core/atomic_file.h"
#include "core/format.h"
#include "core/json.h"
#include "study/calibrate_machine.h"
#include "study/calibrate_runs.h"

namespace foreshard::cli {
namespace {

std::string text_of(const Json& file, const CeilingFit& fit) {
  std::string out = fmt::format("{} row{} of {} laborator{}\n", fit.rows, fit.rows == 1 ? "" : "s",
                                fit.laboratories, fit.laboratories == 1 ? "y" : "ies");
  if (fit.laboratories == 1) out += "one laboratory: there is none to leave out\n";
  out += fmt::format("\n  {:<26} {:>8} {:>8} {:>18}\n", "ceiling", "factor", "sd", "one left out");
  for (const Json& c : file["ceilings"]) {
    const Json& range = c["range"];
    out += fmt::format("  {:<26} {:>8.4f} {:>6.1f} % {:>17}\n", c["name"].get<std::string>(),
                       c["factor"].get<double>(), 100 * c["sd"].get<double>(),
                       range.is_null() ? "-"
                                       : fmt::format("{:.4f} - {:.4f}", range[0].get<double>(),
                                                     range[1].get<double>()));
  }
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

Json json_of(const MachineCalibration& c) {
  Json out = {{"numbers", Json::array()}, {"rows", Json::array()}, {"warnings", c.warnings}};
  for (const CalibratedNumber& n : c.numbers)
    out["numbers"].push_back(
        {{"quantity", n.path}, {"factor", n.factor}, {"sd_before", n.sd_before}, {"sd", n.sd}});
  for (const CalibratedRun& r : c.runs) {
    const bool in = r.left_out.empty();
    out["rows"].push_back({{"row_id", r.row_id},
                           {"measured_step_s", in ? Json(r.measured_s) : Json(nullptr)},
                           {"before_step_s", in ? Json(r.before_s) : Json(nullptr)},
                           {"fitted_step_s", in ? Json(r.fitted_s) : Json(nullptr)},
                           {"left_out", in ? Json(nullptr) : Json(r.left_out)},
                           {"assumptions", r.assumptions}});
  }
  return out;
}

std::string text_of(const MachineCalibration& c) {
  std::string out = fmt::format("  {:<24} {:>10} {:>20} {:>20}\n", "row", "measured",
                                "predicted before", "after");
  const auto predicted = [](double s, double measured) {
    return fmt::format("{} {:>+6.1f} %", format_time(from_seconds(s)), 100 * (s / measured - 1));
  };
  for (const CalibratedRun& r : c.runs) {
    if (r.left_out.empty())
      out += fmt::format("  {:<24} {:>10} {:>20} {:>20}\n", r.row_id,
                         format_time(from_seconds(r.measured_s)),
                         predicted(r.before_s, r.measured_s), predicted(r.fitted_s, r.measured_s));
    else
      out += fmt::format("  {:<24} left out: {}\n", r.row_id, r.left_out);
    for (const std::string& assumed : r.assumptions) out += "      assumed: " + assumed + "\n";
  }
  out += fmt::format("\n  {:<34} {:>8} {:>19}\n", "number", "factor", "uncertainty");
  for (const CalibratedNumber& n : c.numbers)
    out += fmt::format("  {:<34} {:>8.4f} {:>7.1f} to {:>4.1f} %\n", n.path, n.factor,
                       100 * n.sd_before, 100 * n.sd);
  for (const std::string& w : c.warnings) out += "  warning: " + w + "\n";
  return out;
}

/// --on: one machine's own profile.
int calibrate_own(Arguments& a, const RunsTable& table) {
  const MachineCalibration found = calibrate_machine(table, load_hardware(a.text("on")));
  const std::string file = a.text("output");
  if (!file.empty()) write_file_atomically(file, to_json(found.profile).dump(1) + "\n");
  if (a.flag("json")) return print_json(json_of(found)), kOk;
  print(text_of(found) + (file.empty() ? "-o FILE writes the profile\n"
                                       : fmt::format("wrote {0}; use it with --on {0}\n", file)));
  return kOk;
}

/// What the table's header holds and is not read.
void note_further(Arguments& a, const RunsTable& table) {
  if (!table.further_columns.empty())
    a.note(fmt::format("columns not read: {}", fmt::join(table.further_columns, ", ")));
}

int calibrate_runs(Arguments& a) {
  if (a.has("on") && a.has("leave-out"))
    a.report("leave-out", "is for the fit of the catalogue's GPUs",
             "leave --on out, or the rows out of the table");
  a.check();
  const RunsTable table = read_runs_table(a.positional(0));
  note_further(a, table);
  if (a.has("on")) return calibrate_own(a, table);
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
  c.summary = "Fits a machine's profile, or the catalogue's ceilings, to measured training runs.";
  c.examples = {
      {"foreshard calibrate runs mine.csv --on dgx-h100 -o my-box.json",
       "a profile of your own for --on my-box.json from measured step times; one is enough"},
      {"foreshard calibrate runs runs.csv -o training.json",
       "factors with uncertainty, and the file that the catalogue holds"},
      {"foreshard calibrate runs runs.csv --leave-out mpt", "the same without one laboratory"}};
  c.positionals = {{"FILE.csv", "Table of measured runs (docs/formats/measured-runs.md)", true}};
  c.groups = {{"Question",
               {{"on",
                 "HARDWARE",
                 "The machine that all rows were measured on: fit its profile",
                 {},
                 false},
                {"leave-out",
                 "LABORATORY",
                 "Use no row of this laboratory (leading letters of source_id)",
                 {},
                 false}}},
              {"Answer",
               {{"output",
                 "FILE",
                 "Write the profile; without --on the calibration file of the catalogue",
                 {},
                 false},
                {"json", "", "The same as a JSON document on standard output", {}, false}}}};
  c.run = calibrate_runs;
  return c;
}

}  // namespace foreshard::cli
