#include <fmt/format.h>

#include <cmath>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/ratio_cases.h"
#include "core/json.h"

namespace foreshard::cli {
namespace {

/// A claim holds in size if the predicted effect is within a third of the published one.
constexpr double kThird = 1.0 / 3;

/// Predicted effect over the published one, both as change from 1.
std::optional<double> size_of(const RatioScore& r) {
  if (!r.predicted || r.of->ratio == 1) return std::nullopt;
  return (*r.predicted - 1) / (r.of->ratio - 1);
}

bool within_third(const RatioScore& r) {
  const auto size = size_of(r);
  return size && std::fabs(*size - 1) <= kThird;
}

struct Totals {
  int claims = 0, predicted = 0, directions = 0, sizes = 0;
};

Totals totals_of(const RatioScores& scores) {
  Totals t;
  for (const RatioScore& r : scores.rows) {
    ++t.claims;
    t.predicted += r.predicted ? 1 : 0;
    t.directions += r.predicted && r.sign_right ? 1 : 0;
    t.sizes += within_third(r) ? 1 : 0;
  }
  return t;
}

std::string claims_text(const RatioScores& scores) {
  std::string out = fmt::format("  {:<8} {:>10} {:>10}  {:<10} {:<8} {}\n", "claim", "published",
                                "predicted", "direction", "size", "what");
  for (const RatioScore& r : scores.rows) {
    const RatioCase& c = *r.of;
    const std::string published = fmt::format("{:+.1f} %", 100 * (c.ratio - 1));
    if (!r.predicted) {
      out += fmt::format("  {:<8} {:>10} {:>10}  {:<19} {} (not predicted: {})\n", c.id, published,
                         "-", "", c.what, r.skipped);
      continue;
    }
    out += fmt::format("  {:<8} {:>10} {:>+8.1f} %  {:<10} {:<8} {}\n", c.id, published,
                       100 * (*r.predicted - 1), r.sign_right ? "right" : "WRONG",
                       within_third(r) ? "third" : "off", c.what);
  }
  const Totals t = totals_of(scores);
  return out +
         fmt::format(
             "\n  {} claims, {} predicted: direction right in {}, size within a third in {}\n",
             t.claims, t.predicted, t.directions, t.sizes);
}

Json claims_json(const RatioScores& scores) {
  Json out;
  out["claims"] = Json::array();
  for (const RatioScore& r : scores.rows) {
    out["claims"].push_back(
        {{"id", r.of->id},
         {"what", r.of->what},
         {"published_ratio", r.of->ratio},
         {"predicted_ratio", or_null(r.predicted)},
         {"direction_right", r.predicted ? Json(r.sign_right) : Json(nullptr)},
         {"size_within_third", r.predicted ? Json(within_third(r)) : Json(nullptr)},
         {"skipped", text_or_null(r.skipped)},
         {"assumed", r.of->assumed}});
  }
  const Totals t = totals_of(scores);
  out["summary"] = {{"claims", t.claims},
                    {"predicted", t.predicted},
                    {"directions_right", t.directions},
                    {"sizes_within_third", t.sizes}};
  return out;
}

int score_claims(Arguments& a) { return print_scores(a, claims_text, claims_json); }

}  // namespace

CommandSpec score_claims_command() {
  CommandSpec c;
  c.name = "score claims";
  c.summary =
      "Published statements of what one change does: is the direction right, is the size within a "
      "third?";
  c.examples = {{"foreshard score claims studies/relative_claims/claims.yaml",
                 "each claim with our value beside it"}};
  c.positionals = {
      {"FILE|DIR", "YAML file of pairs in the form of score ratios, or a folder of them", true}};
  c.groups = {{"Answer", {{"json", "", "One JSON document instead of text", {}, false}}}};
  c.run = score_claims;
  return c;
}

}  // namespace foreshard::cli
