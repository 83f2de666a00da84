#include "cli/tune_frameworks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "cli/job_options.h"
#include "cli/output.h"
#include "core/format.h"
#include "core/json.h"
#include "core/parallel.h"
#include "schedules/planner/framework_table.h"
#include "study/evaluate.h"
#include "study/needed_memory.h"

namespace foreshard::cli {
namespace {

struct Row {
  std::string framework;
  std::optional<Job> job;
  std::optional<Evaluation> evaluation;
  Bytes memory;         ///< Device peak; memory that is enough where the device has too little.
  std::string refused;  ///< Why there is no answer.

  bool fits() const { return evaluation && evaluation->result.memory.fits; }
  double speed() const { return evaluation ? evaluation->samples_per_second_per_gpu(*job) : 0; }
};

/// The frameworks that were asked for; "all" without those of one GPU where there are more.
std::vector<std::string> names_of(Arguments& a) {
  std::vector<std::string> all, wanted = a.list("frameworks");
  const bool several = a.integer("gpus", 1, 1, kMostGpus) > 1;
  const bool every = wanted == std::vector<std::string>{"all"};
  for (const FrameworkRow& row : frameworks()) {
    if (every && several && row.ranks == RankLayout::kOneDevice) continue;
    all.emplace_back(row.name);
  }
  if (every) return all;
  for (const std::string& name : wanted)
    if (find_framework(name) == nullptr)
      a.report("frameworks", fmt::format("found \"{}\"", name),
               fmt::format("allowed: all, or of {}", fmt::join(all, ", ")));
  return wanted;
}

Row row_for(const Arguments& a, const std::string& framework) {
  Row row;
  row.framework = framework;
  Arguments own = a;
  own.set("framework", {framework, "--frameworks"});
  try {
    Job job = read_job(own);
    own.check();
    row.evaluation = evaluate(job);
    row.memory =
        needed_memory(job, *row.evaluation).value_or(row.evaluation->result.memory.device_peak);
    row.job = std::move(job);
  } catch (const InputError& e) {
    row.refused = e.issues()[0].text();
  }
  return row;
}

Json json_of(const Row& r) {
  Json out;
  out["framework"] = r.framework;
  out["refused"] = r.refused.empty() ? Json(nullptr) : Json(r.refused);
  if (!r.evaluation) return out;
  const SimulationResult& s = r.evaluation->result;
  out["fits"] = s.memory.fits;
  out["allocator_retries_total"] = s.memory.retries_total;
  out["step_time_s"] = to_seconds(s.step_time);
  out["samples_per_s_per_gpu"] = r.speed();
  out["tokens_per_s_per_gpu"] = r.evaluation->tokens_per_second_per_gpu();
  out["device_peak_bytes"] = s.memory.device_peak.value;
  if (!s.memory.fits_device) out["runs_with_bytes"] = r.memory.value;
  out["mfu"] = r.evaluation->model_flops_utilisation(*r.job);
  out["limited_by"] = s.critical_path.empty() ? "" : name_of(s.critical_path[0].resource);
  return out;
}

std::string line_of(const Row& r) {
  if (!r.evaluation) return fmt::format("  {:<18} {}\n", r.framework, r.refused);
  const SimulationResult& s = r.evaluation->result;
  const bool tokens = r.job->has_tokens();
  return fmt::format(
      "  {:<18} {:>9} {:>10.0f} {:>4.0f} % {:>7.1f}  {}{}\n", r.framework, format_time(s.step_time),
      tokens ? r.evaluation->tokens_per_second_per_gpu() : r.speed(),
      100 * r.evaluation->model_flops_utilisation(*r.job),
      static_cast<double>(r.memory.value) / (1 << 30),
      !s.memory.fits_host()     ? "does not fit the host's memory"
      : !s.memory.fits          ? "does not fit"
      : s.critical_path.empty() ? ""
                                : name_of(s.critical_path[0].resource),
      s.memory.fits && is_borderline(s.memory) ? "  (borderline: allocator retries)" : "");
}

}  // namespace

int tune_frameworks(Arguments& a) {
  if (a.has("framework"))
    a.report("framework", "is what --frameworks varies", "leave one of them out");
  if (a.has("export"))
    a.report("export", "is for one framework", "--framework NAME in place of --frameworks");
  const std::vector<std::string> names = names_of(a);
  a.check();
  std::vector<Row> rows(names.size());
  parallel_for(names.size(), [&](std::size_t i) { rows[i] = row_for(a, names[i]); });
  std::stable_sort(rows.begin(), rows.end(), [](const Row& x, const Row& y) {
    return x.fits() != y.fits() ? x.fits() : x.speed() > y.speed();
  });
  const auto some = std::find_if(rows.begin(), rows.end(), [](const Row& r) { return r.job; });
  if (some == rows.end()) throw InputError(Issue{"--frameworks", "", rows[0].refused, ""});
  const Job& job = *some->job;
  const int code = rows.front().fits() ? kOk : kTargetMissed;  // Those that fit stand first.
  if (a.flag("json")) {
    Json out = Json::array();
    for (const Row& r : rows) out.push_back(json_of(r));
    return print_json(out), code;
  }
  std::string out = fmt::format("{} · {}\neach with its defaults and the options given\n\n",
                                job.model->name, describe_machines(job.hardware, job.gpus));
  out += fmt::format("  {:<18} {:>9} {:>10} {:>6} {:>7}  {}\n", "framework", "step",
                     job.has_tokens() ? "tok/s/GPU" : "samples/s", "MFU", "GiB", "limited by");
  for (const Row& r : rows) out += line_of(r);
  return print(out +
               "\n  What each leaves out: foreshard simulate ... --framework NAME --explain\n"),
         code;
}

}  // namespace foreshard::cli
