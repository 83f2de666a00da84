#include "study/score_runs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "core/error.h"
#include "core/parallel.h"
#include "study/calibrate_runs.h"
#include "study/planned_run.h"
#include "study/score_memory.h"
#include "study/uncertainty.h"

namespace foreshard {
namespace {

constexpr double kGiB = 1073741824.0;

/// Which target a row counts for: training on A100 or H100 with FSDP, ZeRO or DDP; "FSDP bf16"
/// among them.
std::string target_of(const MeasuredRun& run, const RunJob& job) {
  if (!run.gpu.starts_with("A100") && !run.gpu.starts_with("H100")) return {};
  return run.strategy.starts_with("FSDP") && job.calibrates ? "FSDP bf16" : "other";
}

/// The factors that a laboratory's rows are predicted with.
using FactorsOf = std::function<std::optional<CeilingFactors>(const std::string& laboratory)>;

/// The uncertainty of the catalogue's constants, whichever the prediction was made with.
double time_sd(const PlannedRun& run, Time step) {
  const Job& job = run.job().job;
  return uncertainty_of(job, run.schedule(), step, run.parameters(job.hardware.gpu)).sd;
}

void predict(const MeasuredRun& run, RunJob job, const FactorsOf& factors, bool ranges,
             RunScore& score) {
  const PlannedRun planned(std::move(job));
  const SimulationResult result = planned.simulate(factors(score.laboratory));
  score.retries = result.memory.retries;
  score.fits = result.memory.fits;
  if (score.measured_step_s) {
    score.predicted_step_s = to_seconds(result.step_time);
    score.time_error = *score.predicted_step_s / *score.measured_step_s - 1;
    if (ranges) score.time_sd = time_sd(planned, result.step_time);
  }
  if (score.measured_memory_bytes) {
    score.predicted_memory_bytes = memory_like(run, planned.schedule(), result.memory);
    score.memory_error = *score.predicted_memory_bytes / *score.measured_memory_bytes - 1;
  }
}

RunScore score_run(const MeasuredRun& run, const CostParameters& parameters,
                   const FactorsOf& factors, bool ranges) {
  RunScore score;
  score.row_id = run.row_id;
  score.laboratory = laboratory_of(run.source_id);
  score.measured_step_s = measured_step_s(run);
  RunJob job = job_of_run(run, parameters);
  if (run.peak_mem_gib && job.compares_memory)
    score.measured_memory_bytes = *run.peak_mem_gib * kGiB;
  score.assumptions = job.assumptions;
  score.skipped = job.refusal;
  if (!score.skipped.empty()) return score;
  score.target = target_of(run, job);
  try {
    predict(run, std::move(job), factors, ranges, score);
  } catch (
      const std::exception& error) {  // One row's failure, ours included, is that row's answer.
    score.skipped = error.what();
  }
  return score;
}

ErrorSummary summary_of(std::vector<double> errors) {
  ErrorSummary s;
  for (double& e : errors) e = std::fabs(e), s.mape += e;
  s.rows = static_cast<std::int64_t>(errors.size());
  if (errors.empty()) return s;
  s.mape /= static_cast<double>(s.rows);
  std::sort(errors.begin(), errors.end());
  s.p95 =
      errors[static_cast<std::size_t>(std::ceil(0.95 * static_cast<double>(errors.size()))) - 1];
  s.worst = errors.back();
  return s;
}

ErrorSummary time_summary(const std::vector<const RunScore*>& rows) {
  std::vector<double> errors;
  std::int64_t stated = 0, within = 0;
  for (const RunScore* r : rows) {
    errors.push_back(*r->time_error);
    if (!r->time_sd) continue;
    ++stated;
    within += within_p10_p90(*r->predicted_step_s, *r->measured_step_s, *r->time_sd) ? 1 : 0;
  }
  ErrorSummary s = summary_of(std::move(errors));
  if (stated > 0) s.within = static_cast<double>(within) / static_cast<double>(stated);
  return s;
}

RunScoreSummary summarise(const std::vector<RunScore>& rows) {
  RunScoreSummary s;
  s.rows = static_cast<std::int64_t>(rows.size());
  std::vector<double> memories;
  std::vector<const RunScore*> times;
  std::map<std::string, std::vector<const RunScore*>> laboratories, targets;
  for (const RunScore& r : rows) {
    s.scored += r.time_error || r.memory_error ? 1 : 0;
    if (r.memory_error) memories.push_back(*r.memory_error);
    if (!r.time_error) continue;
    times.push_back(&r);
    laboratories[r.laboratory].push_back(&r);
    if (r.target.empty()) targets["Other GPUs"].push_back(&r);
    if (!r.target.empty()) targets["A100 and H100: FSDP, ZeRO, DDP"].push_back(&r);
    if (r.target == "FSDP bf16") targets["A100 and H100: FSDP in bf16"].push_back(&r);
  }
  const ErrorSummary time = time_summary(times), memory = summary_of(memories);
  if (time.rows > 0) s.time_mape = time.mape, s.time_worst = time.worst;
  if (memory.rows > 0) s.memory_mape = memory.mape, s.memory_worst = memory.worst;
  for (const auto& [name, of] : targets) s.groups.emplace_back(name, time_summary(of));
  for (const auto& [name, of] : laboratories)
    s.groups.emplace_back("laboratory " + name, time_summary(of));
  return s;
}

FactorsOf factors_of(const RunsTable& table, const CostParameters& parameters, CeilingsFrom from) {
  if (from == CeilingsFrom::kCatalogue) return [](const std::string&) { return std::nullopt; };
  const CeilingFactors priors(training_ceilings().size(), 0.0);
  if (from == CeilingsFrom::kPriors)
    return [=](const std::string&) { return std::optional(priors); };
  const std::vector<CalibrationRow> rows = calibration_rows(table, parameters);
  std::map<std::string, CeilingFactors> of;
  for (const MeasuredRun& run : table.runs) {
    const std::string laboratory = laboratory_of(run.source_id);
    if (of.count(laboratory) == 0) of[laboratory] = fit_ceilings(rows, laboratory).factors;
  }
  return [of](const std::string& laboratory) { return std::optional(of.at(laboratory)); };
}

}  // namespace

RunScores score_runs(const RunsTable& table, const RunScoring& scoring,
                     const CostParameters& parameters) {
  RunScores out;
  const FactorsOf factors = factors_of(table, parameters, scoring.ceilings);
  out.rows.resize(table.runs.size());
  parallel_for(table.runs.size(), [&](std::size_t i) {
    out.rows[i] = score_run(table.runs[i], parameters, factors, scoring.ranges);
  });
  out.summary = summarise(out.rows);
  return out;
}

}  // namespace foreshard
