#include "study/score_runs.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "schedules/planner/planner.h"
#include "sim/hardware_cost.h"
#include "study/run_job.h"

namespace foreshard {
namespace {

constexpr double kGiB = 1073741824.0;

/// The predicted figure of the kind that the row's source reports.
double memory_of(const MemoryResult& memory, const std::string& kind) {
  if (kind.find("allocated") != std::string::npos) return static_cast<double>(memory.allocated_peak.value);
  if (kind.find("device") != std::string::npos || kind.find("process") != std::string::npos) {
    return static_cast<double>(memory.device_peak.value);
  }
  if (kind.find("active") != std::string::npos) return static_cast<double>(memory.allocated_peak.value);
  return static_cast<double>(memory.reserved_peak.value);
}

void predict(const MeasuredRun& run, const RunJob& job, RunScore& score) {
  PlanOptions plan_options;
  plan_options.ranks = {0};
  const Schedule schedule = plan(*job.job.model, job.job.config, plan_options);
  const Cluster cluster = make_cluster(job.job.hardware, static_cast<int>(job.job.gpus));
  SimulationOptions options;
  options.detail = Detail::kTimesOnly;
  const SimulationResult result = simulate(schedule, cluster, options, job.parameters);
  if (score.measured_step_s) {
    score.predicted_step_s = to_seconds(result.step_time);
    score.time_error = *score.predicted_step_s / *score.measured_step_s - 1;
  }
  if (score.measured_memory_bytes) {
    score.predicted_memory_bytes = memory_of(result.memory, run.mem_kind);
    score.memory_error = *score.predicted_memory_bytes / *score.measured_memory_bytes - 1;
  }
}

RunScore score_run(const MeasuredRun& run, const CostParameters& parameters) {
  RunScore score;
  score.row_id = run.row_id;
  score.laboratory = run.source_id;
  score.measured_step_s = run.step_time_s;
  if (run.peak_mem_gib) score.measured_memory_bytes = *run.peak_mem_gib * kGiB;
  RunJob job = job_of_run(run, parameters);
  score.assumptions = job.assumptions;
  score.skipped = job.refusal;
  if (!score.skipped.empty()) return score;
  try {
    predict(run, job, score);
  } catch (const std::exception& error) {     // One row's failure, ours included, is that row's answer.
    score.skipped = error.what();
  }
  return score;
}

RunScoreSummary summarise(const std::vector<RunScore>& rows) {
  RunScoreSummary s;
  s.rows = static_cast<std::int64_t>(rows.size());
  std::int64_t times = 0, memories = 0;
  for (const RunScore& r : rows) {
    s.scored += r.time_error || r.memory_error ? 1 : 0;
    if (r.time_error) {
      ++times;
      s.time_mape += std::fabs(*r.time_error);
      s.time_worst = std::max(s.time_worst, std::fabs(*r.time_error));
    }
    if (r.memory_error) {
      ++memories;
      s.memory_mape += std::fabs(*r.memory_error);
      s.memory_worst = std::max(s.memory_worst, std::fabs(*r.memory_error));
    }
  }
  if (times > 0) s.time_mape /= static_cast<double>(times);
  if (memories > 0) s.memory_mape /= static_cast<double>(memories);
  return s;
}

}  // namespace

RunScores score_runs(const RunsTable& table, const CostParameters& parameters) {
  RunScores out;
  for (const MeasuredRun& run : table.runs) out.rows.push_back(score_run(run, parameters));
  out.summary = summarise(out.rows);
  return out;
}

}  // namespace foreshard
