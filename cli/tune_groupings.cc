#include "cli/tune_groupings.h"

#include <fmt/format.h>

#include "cli/output.h"
#include "cli/torch_code.h"
#include "core/format.h"
#include "core/json.h"
#include "study/grouping_study.h"
#include "study/ways_to_fit.h"

namespace foreshard::cli {
namespace {

/// "2 x 1, 26 x 3": runs of equal groups in order.
std::string text_of(const std::vector<std::int64_t>& sizes) {
  std::string out;
  for (std::size_t i = 0; i < sizes.size();) {
    std::size_t end = i;
    while (end < sizes.size() && sizes[end] == sizes[i]) ++end;
    if (!out.empty()) out += ", ";
    out += end - i == 1 ? std::to_string(sizes[i]) : fmt::format("{} x {}", end - i, sizes[i]);
    i = end;
  }
  return out;
}

Json json_of(const Grouping& g) {
  return {{"sizes", g.sizes},
          {"units", g.sizes.size()},
          {"model_step_s", to_seconds(g.step)},
          {"model_buffer_bytes", g.buffers.value}};
}

Json json_of(const SimulatedGrouping& row) {
  Json out = json_of(row.grouping);
  out["on_front"] = row.on_front;
  out["step_time_s"] = to_seconds(row.step);
  out["device_peak_bytes"] = row.memory.value;
  out["fits"] = row.fits;
  out["allocator_retries_total"] = row.retries;
  return out;
}

Json json_of(const GroupingStudy& study, std::size_t blocks) {
  Json out;
  out["blocks"] = blocks;
  out["front"] = Json::array();
  for (const Grouping& g : study.front) out["front"].push_back(json_of(g));
  out["simulated"] = Json::array();
  for (const SimulatedGrouping& row : study.rows) out["simulated"].push_back(json_of(row));
  out["best"] = json_of(study.rows[study.chosen]);
  out["reason"] = study.reason;
  out["each_block"] = json_of(study.rows[study.each]);
  return out;
}

std::string line_of(const SimulatedGrouping& row, bool chosen) {
  const std::string name =
      row.even ? fmt::format("every:{}", row.grouping.sizes.front()) : text_of(row.grouping.sizes);
  return fmt::format("  {:>1} {:>5} {:>10} {:>10} {:>9.1f}  {}{}\n", chosen ? ">" : "",
                     row.grouping.sizes.size(), format_time(row.grouping.step),
                     format_time(row.step), static_cast<double>(row.memory.value) / (1 << 30), name,
                     !row.fits         ? "  (does not fit)"
                     : row.retries > 0 ? "  (allocator retries)"
                                       : "");
}

std::string text_of(const Job& job, const GroupingStudy& study, std::size_t blocks) {
  std::string out = fmt::format(
      "{} · {} · {}\n\nEvery contiguous grouping of {} blocks was searched for the best in a model "
      "of overlap without host time and\ninterference (docs/simulator.md). What it found and "
      "equal groups, simulated in full:\n\n",
      job.model->name, describe_machines(job.hardware, job.gpus), describe_precision(job),
      blocks);
  out += fmt::format("  {:>1} {:>5} {:>10} {:>10} {:>9}  {}\n", "", "units", "model", "simulated",
                     "peak GiB", "groups");
  for (std::size_t i = 0; i < study.rows.size(); ++i)
    out += line_of(study.rows[i], i == study.chosen);
  return out + fmt::format(
                   "\n  Choose {}: {}.\n  Resharding and root split are as given: tune without "
                   "--all-groupings tries them, too.\n",
                   text_of(study.rows[study.chosen].grouping.sizes), study.reason);
}

}  // namespace

int tune_groupings(const Job& job, Arguments& a) {
  const GroupingStudy study = study_groupings(job);
  if (study.chosen == study.rows.size()) {
    warn("no grouping fits: " + ways_to_fit(job));
    return kTargetMissed;
  }
  const std::size_t blocks = job.model->roles.blocks.size();
  if (a.has("export"))
    return print(torch_code(with_grouping(job, study.rows[study.chosen].grouping.sizes))), kOk;
  if (a.flag("json")) return print_json(json_of(study, blocks)), kOk;
  return print(text_of(job, study, blocks)), kOk;
}

}  // namespace foreshard::cli
