#include "study/calibrate_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/error.h"
#include "study/fit_factors.h"
#include "core/parallel.h"
#include "study/planned_run.h"
#include "study/run_hardware.h"
#include "study/uncertainty.h"

namespace foreshard {
namespace {

/// Of log(predicted / measured) from row to row of one machine: what the calibration of the
/// catalogue leaves of one laboratory's rows (2.6 % mean absolute of 250 of MPT, times 1.25).
constexpr double kOwnRowSd = 0.033;
/// Beyond it a row is of another job, or its time of another unit.
constexpr double kFarthest = 3;
constexpr const char* kMachine = "machine to machine";

/// Rates of the GPU, in which one machine differs from another of its type.
UncertainNumber machine_number(GpuProfile& gpu) {
  UncertainNumber n{kMachine, {}, -1, machine_spread_of(gpu), "machine_spread"};
  for (auto& [key, fact] : gpu.efficiency) {
    const bool attention =
        key.starts_with("attention_") && !key.ends_with("_half_length") && !key.ends_with("_ratio");
    if (attention || key == "matmul_training" || key == "memory_bound" || key == "fp8_matmul")
      n.facts.push_back(&fact);
  }
  return n;
}

/// Numbers of `profile`, a copy of the run's machine, on which the run may depend.
std::vector<UncertainNumber> numbers_of(const PlannedRun& run, HardwareProfile& profile) {
  std::vector<UncertainNumber> list = uncertain_numbers(run.job().job, run.schedule(), profile);
  list.push_back(machine_number(profile.gpu));
  return list;
}

/// What one row says: its step on the machine as it is, and what of it moves with each number.
struct RowModel {
  MemoryDetail memory = MemoryDetail::kNone;  ///< That its simulations need.
  double step_s = 0;
  std::map<std::string, double> parts_s;
};

/// A row with the words for it, and as planned; nothing planned if it is left out.
struct Row {
  CalibratedRun answer;
  std::optional<PlannedRun> planned;
  RowModel model;
};

RowModel model_of(const PlannedRun& run) {
  HardwareProfile moved = run.job().job.hardware;
  // Without retries memory does not touch time, and the allocator need not run again.
  const SimulationResult settled = run.simulate_on(moved, MemoryDetail::kClasses);
  RowModel out;
  if (settled.memory.retries > 0) out.memory = MemoryDetail::kClasses;
  const auto seconds = [&] { return to_seconds(run.simulate_on(moved, out.memory).step_time); };
  out.step_s = seconds();
  for (const UncertainNumber& n : numbers_of(run, moved)) {
    std::vector<double> before;
    for (Fact* f : n.facts) {
      before.push_back(f->value);
      f->value *= std::exp(n.slower * std::log1p(kFactorProbe));
    }
    out.parts_s[n.path] = (seconds() - out.step_s) / kFactorProbe;
    for (std::size_t i = 0; i < n.facts.size(); ++i) n.facts[i]->value = before[i];
  }
  return out;
}

/// Why the row's time cannot be one of the job that its columns say; empty if it can.
std::string too_far(double measured, double predicted) {
  const double ratio = measured / predicted;
  if (ratio < kFarthest && ratio > 1 / kFarthest) return {};
  return fmt::format(
      "columns step_time_s, tokens_per_s_per_gpu: {:.4g} s a step, {:.3g} times the predicted "
      "{:.4g} s; allowed: up to {:g} times more or less (seconds; tokens/s of one GPU)",
      measured, ratio, predicted, kFarthest);
}

Row read_row(const MeasuredRun& run, const HardwareProfile& machine) {
  Row row;
  row.answer.row_id = run.row_id;
  const std::optional<double> measured = measured_step_s(run);
  RunJob job = job_of_run(run, {}, &machine);
  row.answer.assumptions = job.assumptions;
  row.answer.left_out = job.refusal;
  if (row.answer.left_out.empty() && !measured)
    row.answer.left_out = "columns step_time_s, tokens_per_s_per_gpu: both are empty";
  if (!row.answer.left_out.empty()) return row;
  row.answer.measured_s = *measured;
  try {
    row.planned.emplace(std::move(job));
    row.model = model_of(*row.planned);
    row.answer.before_s = row.model.step_s;
    row.answer.left_out = too_far(*measured, row.model.step_s);
  } catch (const InputError& error) {
    row.answer.left_out = error.what();
  }
  if (!row.answer.left_out.empty()) row.planned.reset();
  return row;
}

std::vector<Row> read_rows(const RunsTable& table, const HardwareProfile& machine) {
  std::vector<Row> rows(table.runs.size());
  parallel_for(rows.size(), [&](std::size_t i) { rows[i] = read_row(table.runs[i], machine); });
  if (std::none_of(rows.begin(), rows.end(), [](const Row& r) { return r.planned.has_value(); })) {
    IssueList issues(table.file);
    for (const Row& r : rows) issues.add(r.answer.row_id, r.answer.left_out);
    if (rows.empty()) issues.add("", "no rows", "one line for each measured run");
    issues.throw_if_any();
  }
  return rows;
}

/// A number with its place in the fit.
struct FittedNumber {
  FactorPrior prior;
  double factor = 0, sd = 0;  ///< Of the logarithm.
};

std::map<std::string, FittedNumber> fit_numbers(const std::vector<Row>& rows,
                                                const HardwareProfile& machine) {
  std::map<std::string, FittedNumber> numbers;
  std::size_t taking_part = 0;
  for (const Row& row : rows) {
    if (!row.planned) continue;
    ++taking_part;
    HardwareProfile copy = machine;
    for (const UncertainNumber& n : numbers_of(*row.planned, copy))
      numbers[n.path].prior = {n.sd, n.slower};
  }
  std::vector<FactorPrior> priors;
  for (const auto& [path, n] : numbers) priors.push_back(n.prior);
  std::vector<StepModel> models;
  std::vector<FactorRow> fitted_rows;
  models.reserve(taking_part);
  // Rows of one machine share what the model gets wrong: they count by the root of their number.
  const double weight = 1 / (kOwnRowSd * kOwnRowSd * std::sqrt(static_cast<double>(taking_part)));
  for (const Row& row : rows) {
    if (!row.planned) continue;
    StepModel& model = models.emplace_back(StepModel{row.model.step_s, {}});
    for (const auto& [path, n] : numbers) {
      const auto part = row.model.parts_s.find(path);
      model.parts_s.push_back(part == row.model.parts_s.end() ? 0 : part->second);
    }
    fitted_rows.push_back({&model, row.answer.measured_s, weight});
  }
  const FactorFit found = fit_factors(priors, fitted_rows);
  std::size_t i = 0;
  for (auto& [path, n] : numbers) n.factor = found.factors[i], n.sd = found.sd[i], ++i;
  return numbers;
}

/// The rows say something of it: it moved, or is known better.
bool informed(const FittedNumber& n) {
  return std::fabs(n.factor) > 1e-3 || n.sd < 0.99 * n.prior.sd;
}

/// Shares of a whole cannot pass it.
void keep_possible(HardwareProfile& p, std::vector<std::string>& warnings) {
  const auto limit = [&](const std::string& path, Fact& fact, double most) {
    if (!fact.known() || fact.value <= most) return;
    warnings.push_back(
        fmt::format("the rows want {} = {:.3g}, more than the machine can have ({:.3g}): is it of "
                    "another type?",
                    path, fact.value, most));
    fact.value = most;
  };
  for (const char* key : {"matmul_training", "memory_bound"}) {
    const auto found = p.gpu.efficiency.find(key);
    if (found != p.gpu.efficiency.end())
      limit(std::string("gpu.efficiency.") + key, found->second, 1);
  }
  limit("network.efficiency", p.network.efficiency, 1);
  if (p.gpu.nvlink_links.value_or(0) > 0 && p.gpu.nvlink_bandwidth.known())
    limit("gpu.nvlink_planning", p.gpu.nvlink_planning,
          p.gpu.nvlink_bandwidth.value / p.gpu.nvlink_links.value);
}

/// Moves what the rows inform of the profile; each fact says by how much, and what it was.
void apply_factors(const std::vector<Row>& rows, const std::map<std::string, FittedNumber>& numbers,
                   const std::string& source, MachineCalibration& out) {
  std::set<std::string> done;
  for (const Row& row : rows) {
    if (!row.planned) continue;
    for (const UncertainNumber& n : numbers_of(*row.planned, out.profile)) {
      const FittedNumber& fitted = numbers.at(n.path);
      if (!done.insert(n.path).second || !informed(fitted)) continue;
      const double factor = std::exp(fitted.factor);
      for (Fact* f : n.facts) {
        f->source = fmt::format("{}: {} x {:.4g}; before: {}", source, n.path, factor, f->source);
        if (std::isnan(f->prior)) f->prior = f->value;
        f->value *= factor;
        f->kind = FactKind::kCalibrated;
        if (n.path != kMachine) f->uncertainty = fitted.sd;
      }
      out.numbers.push_back({n.path, factor, fitted.prior.sd, fitted.sd});
    }
  }
  keep_possible(out.profile, out.warnings);
}

/// What is left of machine to machine: the rest of this one's factor, and what rows of one machine
/// differ by.
void narrow_machine_spread(const FittedNumber& machine, const std::string& source,
                           GpuProfile& gpu) {
  const double left = std::hypot(machine.sd, kOwnRowSd);
  if (left >= machine.prior.sd) return;
  Fact& spread = gpu.efficiency["machine_spread"];
  spread.value = left;
  spread.kind = FactKind::kCalibrated;
  spread.source = source + ": what its rows leave open of this machine, and what rows differ by";
}

}  // namespace

MachineCalibration calibrate_machine(const RunsTable& table, const HardwareProfile& machine) {
  std::vector<Row> rows = read_rows(table, machine);
  const std::map<std::string, FittedNumber> numbers = fit_numbers(rows, machine);
  MachineCalibration out;
  out.profile = machine;
  const auto taking_part =
      std::count_if(rows.begin(), rows.end(), [](const Row& r) { return r.planned.has_value(); });
  const std::string source = fmt::format("foreshard calibrate runs on {} row{} ({})", taking_part,
                                         taking_part == 1 ? "" : "s",
                                         std::filesystem::path(table.file).filename().string());
  apply_factors(rows, numbers, source, out);
  narrow_machine_spread(numbers.at(kMachine), source, out.profile.gpu);
  parallel_for(rows.size(), [&](std::size_t i) {
    if (!rows[i].planned) return;
    HardwareProfile fitted = out.profile;
    apply_stated_nodes(table.runs[i], fitted);
    rows[i].answer.fitted_s =
        to_seconds(rows[i].planned->simulate_on(fitted, rows[i].model.memory).step_time);
  });
  for (Row& row : rows) out.runs.push_back(std::move(row.answer));
  return out;
}

}  // namespace foreshard
