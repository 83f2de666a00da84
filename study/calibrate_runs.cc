#include "study/calibrate_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <set>

#include "core/error.h"
#include "core/json.h"
#include "core/parallel.h"
#include "hwprofiles/calibration.h"
#include "hwprofiles/fact_text.h"

namespace foreshard {
namespace {

constexpr double kRowSd = 0.05;  ///< Spread of one laboratory against another at equal hardware.

std::map<std::string, double> laboratory_weights(const std::vector<CalibrationRow>& rows,
                                                 const std::string& left_out) {
  std::map<std::string, double> count;
  for (const CalibrationRow& r : rows) {
    if (r.laboratory != left_out) count[r.laboratory] += 1;
  }
  for (auto& [name, n] : count) n = 1 / std::sqrt(n);
  return count;
}

double residual(const CalibrationRow& row, const CeilingFactors& factors) {
  return std::log(row.model.at(ceiling_priors(), factors) / row.measured_s);
}

/// The spread of factors over fits that leave out one laboratory each.
std::vector<std::pair<double, double>> ranges_of(const std::vector<CalibrationRow>& rows) {
  std::set<std::string> laboratories;
  for (const CalibrationRow& r : rows) laboratories.insert(r.laboratory);
  std::vector<std::pair<double, double>> out(training_ceilings().size(), {1e9, -1e9});
  for (const std::string& name : laboratories) {
    const CeilingFit fit = fit_ceilings(rows, name);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i].first = std::min(out[i].first, fit.factors[i]);
      out[i].second = std::max(out[i].second, fit.factors[i]);
    }
  }
  return out;
}

double rounded(double x) {
  if (x == 0) return 0;
  const double scale = std::pow(10.0, 3 - std::floor(std::log10(std::fabs(x))));
  return std::round(x * scale) / scale;
}

/// One GPU's efficiencies after the fit.
Json gpu_facts(const std::string& name, const CeilingFit& fit,
               const std::vector<std::pair<double, double>>& ranges, const std::string& table) {
  GpuProfile prior = load_gpu(name);
  forget_calibration(prior);
  GpuProfile fitted = prior;
  apply_ceilings(fit.factors, fitted);
  Json facts = Json::object();
  const auto ceilings = training_ceilings();
  std::map<std::string_view, std::array<double, 3>>
      spread;  // variance, lowest and highest log factor, by efficiency
  for (std::size_t i = 0; i < ceilings.size(); ++i) {
    if (!concerns(ceilings[i], prior)) continue;
    for (const std::string_view key : ceilings[i].efficiencies) {
      std::array<double, 3>& s = spread[key];
      s[0] += fit.sd[i] * fit.sd[i];
      s[1] += ranges[i].first;
      s[2] += ranges[i].second;
    }
  }
  for (const auto& [key, s] : spread) {
    const Fact* before = prior.find_efficiency(key);
    if (before == nullptr) continue;
    Fact fact = *fitted.find_efficiency(key);
    fact.value = rounded(fact.value);
    fact.kind = FactKind::kCalibrated;
    fact.prior = std::nan("");
    fact.uncertainty = rounded(std::sqrt(s[0]));
    fact.source = fmt::format(
        "foreshard calibrate runs on {} rows of {} laboratories ({}); prior {:.4g} ({})", fit.rows,
        fit.laboratories, table, before->value, uncalibrated_source(name, key));
    if (fit.laboratories > 1)
      fact.source += fmt::format("; leaving one laboratory out {:.4g} to {:.4g}",
                                 before->value * std::exp(s[1]), before->value * std::exp(s[2]));
    facts[std::string(key)] = fact_to_json(fact);
  }
  return facts;
}

Json residuals_json(const std::vector<CalibrationRow>& rows, const CeilingFit& fit) {
  std::map<std::string, std::vector<double>> by_laboratory;
  for (const CalibrationRow& r : rows)
    by_laboratory[r.laboratory].push_back(std::exp(residual(r, fit.factors)) - 1);
  Json out = Json::object();
  for (auto& [name, errors] : by_laboratory) {
    double mean = 0, absolute = 0;
    for (const double e : errors) {
      mean += e / static_cast<double>(errors.size());
      absolute += std::fabs(e) / static_cast<double>(errors.size());
    }
    out[name] = {{"rows", errors.size()},
                 {"mean_error", rounded(mean)},
                 {"mean_absolute_error", rounded(absolute)}};
  }
  return out;
}

/// Root mean square over laboratories of the mean residual that a fit to the others leaves:
/// machines and software of one place against those of another.
double machine_spread(const std::vector<CalibrationRow>& rows) {
  std::map<std::string, std::pair<double, double>> sums;  // Sum of residuals, rows.
  for (const CalibrationRow& r : rows) sums[r.laboratory].second += 1;
  double square = 0, weight = 0;
  for (auto& [name, s] : sums) {
    const CeilingFit fit = fit_ceilings(rows, name);
    for (const CalibrationRow& r : rows)
      s.first += r.laboratory == name ? residual(r, fit.factors) : 0;
    const double mean = s.first / s.second, w = std::sqrt(s.second);
    square += w * mean * mean;
    weight += w;
  }
  return weight > 0 ? std::sqrt(square / weight) : 0;
}

Json coverage_json(const std::vector<CalibrationRow>& rows) {
  Json out = Json::object();
  const auto range = [&](const char* key, std::int64_t CalibrationRow::*member) {
    std::int64_t least = INT64_MAX, most = 0;
    for (const CalibrationRow& r : rows) {
      least = std::min(least, r.*member);
      most = std::max(most, r.*member);
    }
    out[key] = {least, most};
  };
  range("gpus", &CalibrationRow::gpus);
  range("sequence", &CalibrationRow::sequence);
  range("tokens", &CalibrationRow::tokens);
  range("million_parameters", &CalibrationRow::million_parameters);
  return out;
}

}  // namespace

std::string laboratory_of(const std::string& source_id) {
  const auto end = std::find_if(source_id.begin(), source_id.end(),
                                [](unsigned char c) { return std::isalpha(c) == 0; });
  return std::string(source_id.begin(), end);
}

std::vector<CalibrationRow> calibration_rows(const RunsTable& table,
                                             const CostParameters& parameters) {
  std::vector<CalibrationRow> found(table.runs.size());  // Without row_id: no part of the fit.
  parallel_for(table.runs.size(), [&](std::size_t i) {
    const MeasuredRun& run = table.runs[i];
    if (!run.step_time_s) return;
    RunJob job = job_of_run(run, parameters);
    if (!job.refusal.empty() || !job.calibrates) return;
    const GpuProfile& gpu = job.job.hardware.gpu;
    const auto ceilings = training_ceilings();
    if (std::none_of(ceilings.begin(), ceilings.end(),
                     [&](const TrainingCeiling& c) { return concerns(c, gpu); }))
      return;
    try {
      const PlannedRun planned(std::move(job));
      found[i].model = sensitivity_of(planned);
      found[i].laboratory = laboratory_of(run.source_id);
      found[i].measured_s = *run.step_time_s;
      found[i].gpus = planned.job().job.gpus;
      found[i].sequence = planned.job().job.config.sequence;
      found[i].tokens = found[i].sequence * planned.job().job.config.micro_batch;
      found[i].million_parameters = planned.job().job.model->parameter_count().value / 1'000'000;
      found[i].row_id = run.row_id;
    } catch (const InputError&) {  // Refused by the planner: scored as such, no part of a fit.
    }
  });
  std::erase_if(found, [](const CalibrationRow& r) { return r.row_id.empty(); });
  return found;
}

CeilingFit fit_ceilings(const std::vector<CalibrationRow>& rows, const std::string& left_out) {
  const std::map<std::string, double> weights = laboratory_weights(rows, left_out);
  std::vector<FactorRow> taking_part;
  for (const CalibrationRow& row : rows) {
    if (row.laboratory == left_out) continue;
    taking_part.push_back(
        {&row.model, row.measured_s, weights.at(row.laboratory) / (kRowSd * kRowSd)});
  }
  FactorFit fit = fit_factors(ceiling_priors(), taking_part);
  return {std::move(fit.factors), std::move(fit.sd), static_cast<std::int64_t>(taking_part.size()),
          static_cast<std::int64_t>(weights.size())};
}

Json calibration_file(const std::vector<CalibrationRow>& rows, const CeilingFit& fit,
                      const std::string& table_name) {
  const auto ranges = ranges_of(rows);
  Json out = {{"name", "training"}, {"written_by", "foreshard calibrate runs " + table_name}};
  Json ceilings = Json::array();
  for (std::size_t i = 0; i < training_ceilings().size(); ++i) {
    const TrainingCeiling& c = training_ceilings()[i];
    ceilings.push_back({{"name", c.name},
                        {"meaning", c.meaning},
                        {"prior_sd", c.sd},
                        {"factor", rounded(std::exp(fit.factors[i]))},
                        {"sd", rounded(fit.sd[i])},
                        {"range", fit.laboratories > 1 ? Json({rounded(std::exp(ranges[i].first)),
                                                               rounded(std::exp(ranges[i].second))})
                                                       : Json(nullptr)}});
  }
  out["ceilings"] = std::move(ceilings);
  out["residuals"] = residuals_json(rows, fit);
  out["coverage"] = coverage_json(rows);
  Fact spread;
  spread.value = rounded(machine_spread(rows));
  spread.kind = FactKind::kCalibrated;
  spread.source = fmt::format(
      "what fits to other laboratories leave of each, root mean square ({})", table_name);
  for (const std::string& name : gpu_names()) {
    const GpuProfile gpu = load_gpu(name);
    const auto all = training_ceilings();
    if (std::none_of(all.begin(), all.end(), [&](const auto& c) { return concerns(c, gpu); }))
      continue;
    out["gpus"][name] = gpu_facts(name, fit, ranges, table_name);
    if (fit.laboratories > 1) out["gpus"][name]["machine_spread"] = fact_to_json(spread);
  }
  return out;
}

}  // namespace foreshard
