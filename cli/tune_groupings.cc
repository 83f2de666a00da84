#include "cli/tune_groupings.h"

#include <fmt/format.h>

#include "cli/output.h"
#include "cli/torch_code.h"
#include "core/format.h"
#include "core/json.h"
#include "study/evaluate.h"
#include "study/wrap_search.h"

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

Json json_of(const Evaluation& e) {
  return {{"step_time_s", to_seconds(e.result.step_time)},
          {"device_peak_bytes", e.result.memory.device_peak.value},
          {"fits", e.result.memory.fits}};
}

std::string simulated_text(const Evaluation& e) {
  return fmt::format("{}, {:.1f} GiB{}", format_time(e.result.step_time),
                     static_cast<double>(e.result.memory.device_peak.value) / (1 << 30),
                     e.result.memory.fits ? "" : ", does not fit");
}

/// Rows worth a look: from the smallest up, those that are at least 0.2 % faster than the one
/// before.
std::vector<Grouping> thinned(const std::vector<Grouping>& front) {
  std::vector<Grouping> out;
  for (auto g = front.rbegin(); g != front.rend(); ++g) {
    if (out.empty() || out.back().step / g->step > 1.002) out.push_back(*g);
  }
  return {out.rbegin(), out.rend()};
}

/// What is left of the device for buffers of groups: its memory less what one block a unit needs
/// beside its own buffers.
Bytes room(const Evaluation& each_run, const Grouping& each) {
  const MemoryResult& m = each_run.result.memory;
  return m.capacity - (m.device_peak - each.buffers);
}

}  // namespace

int tune_groupings(const Job& job, Arguments& a) {
  const WrapCosts costs = wrap_costs(job);
  const Grouping each = evaluate_grouping(costs, std::vector<std::int64_t>(costs.blocks(), 1));
  const Evaluation each_run = evaluate(with_grouping(job, each.sizes));
  const std::vector<Grouping> front = grouping_front(costs, room(each_run, each));
  if (front.empty()) {
    warn("no grouping fits: more GPUs, --checkpoint full or a smaller --micro-batch");
    return kTargetMissed;
  }
  const Grouping best = thinned(front).front();
  if (a.has("export")) return print(torch_code(with_grouping(job, best.sizes))), kOk;
  const Evaluation best_run = evaluate(with_grouping(job, best.sizes));
  if (a.flag("json")) {
    Json out;
    out["blocks"] = costs.blocks();
    out["front"] = Json::array();
    for (const Grouping& g : front) out["front"].push_back(json_of(g));
    out["best"] = json_of(best_run);
    out["each_block"] = json_of(each_run);
    return print_json(out), kOk;
  }
  std::string out = fmt::format(
      "{} · {} · {}\nevery contiguous grouping of {} blocks; optimal in a model of overlap without "
      "host time and interference (docs/simulator.md), within the device's memory\n\n",
      job.model->name, describe_machines(job.hardware, job.gpus), describe_precision(job.config),
      costs.blocks());
  out += fmt::format("  {:>6} {:>10} {:>12}  {}\n", "units", "step", "buffers GiB", "groups");
  for (const Grouping& g : thinned(front)) {
    out += fmt::format("  {:>6} {:>10} {:>12.1f}  {}\n", g.sizes.size(), format_time(g.step),
                       static_cast<double>(g.buffers.value) / (1 << 30), text_of(g.sizes));
  }
  out += fmt::format(
      "\n  simulated in full: {} for {}\n                     {} for one block a unit\n"
      "  resharding and root split are as given: tune without --all-groupings tries them, too\n",
      simulated_text(best_run), text_of(best.sizes), simulated_text(each_run));
  return print(out), kOk;
}

}  // namespace foreshard::cli
