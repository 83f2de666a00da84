#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/ratio_cases.h"
#include "core/format.h"
#include "core/json.h"

namespace foreshard::cli {
namespace {

Json summary_json(const RatioSummary& s) {
  return {{"cases", s.cases},
          {"scored", s.scored},
          {"signs_right", s.signs_right},
          {"within_10_percent", s.within_10},
          {"within_20_percent", s.within_20},
          {"mean_error", s.mean_error},
          {"worst_error", s.worst_error}};
}

Json ratios_json(const RatioScores& scores) {
  Json out;
  out["rows"] = Json::array();
  for (const RatioScore& r : scores.rows) {
    const RatioCase& c = *r.of;
    Json row = {{"id", c.id},
                {"series", c.series},
                {"what", c.what},
                {"stated", name_of(c.completeness)},
                {"measured", c.ratio},
                {"predicted", or_null(r.predicted)},
                {"error", or_null(r.error)},
                {"skipped", text_or_null(r.skipped)},
                {"assumed", c.assumed},
                {"explained", text_or_null(c.explained)}};
    if (r.predicted) {
      row["sign_right"] = r.sign_right;
      row["step_s"] = {to_seconds(r.step_a), to_seconds(r.step_b)};
      row["exposed_communication_s"] = {to_seconds(r.exposed_a), to_seconds(r.exposed_b)};
    }
    out["rows"].push_back(std::move(row));
  }
  out["stated"] = summary_json(scores.stated);
  out["partial"] = summary_json(scores.partial);
  return out;
}

std::string line_of(const RatioScore& r) {
  const RatioCase& c = *r.of;
  if (!r.error)
    return fmt::format("  {:<12} {:<12} {:>8.3f}   not predicted: {}\n", c.id,
                       name_of(c.completeness), c.ratio, r.skipped);
  return fmt::format(
      "  {:<12} {:<12} {:>8.3f} {:>9.3f} {:>+7.1f} %  {:<5} {:>9} {:>9}  {:>3.0f} % {:>3.0f} %\n",
      c.id, name_of(c.completeness), c.ratio, *r.predicted, 100 * *r.error,
      r.sign_right ? "right" : "WRONG", format_time(r.step_a), format_time(r.step_b),
      100 * (r.exposed_a / r.step_a), 100 * (r.exposed_b / r.step_b));
}

std::string summary_text(const char* title, const RatioSummary& s) {
  if (s.cases == 0) return "";
  return fmt::format(
      "  {}: {} of {} predicted; direction right in {}; within 10 % {}, within 20 % {}; mean "
      "{:.1f} %, worst {:.1f} %\n",
      title, s.scored, s.cases, s.signs_right, s.within_10, s.within_20, 100 * s.mean_error,
      100 * s.worst_error);
}

std::string ratios_text(const RatioScores& scores) {
  std::string out =
      fmt::format("  {:<12} {:<12} {:>8} {:>9} {:>9}  {:<5} {:>9} {:>9}  {}\n", "id", "stated",
                  "measured", "predicted", "error", "sign", "step a", "step b", "exposed a, b");
  for (const RatioScore& r : scores.rows) out += line_of(r);
  return out + "\n" + summary_text("stated in full (or all but a link's rate)", scores.stated) +
         summary_text("stated in part", scores.partial);
}

int score_ratios_of(Arguments& a) { return print_scores(a, ratios_text, ratios_json); }

}  // namespace

CommandSpec score_ratios_command() {
  CommandSpec c;
  c.name = "score ratios";
  c.summary =
      "Predicts published pairs of runs that differ in one setting, and compares the ratios.";
  c.examples = {
      {"foreshard score ratios studies/communication_bound", "every series of the folder"}};
  c.positionals = {{"FILE|DIR", "YAML file of one series, or a folder of them", true}};
  c.groups = {{"Answer", {{"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = score_ratios_of;
  return c;
}

}  // namespace foreshard::cli
