#include "cli/largest.h"

#include <fmt/format.h>

#include "cli/output.h"
#include "core/format.h"
#include "core/json.h"
#include "study/headroom.h"
#include "study/largest.h"
#include "study/ways_to_fit.h"

namespace foreshard::cli {
namespace {

std::string stop_text(const LargestResult& r, const std::string& option) {
  switch (r.stop) {
    case LargestResult::Stop::kMemory:
      return fmt::format("--{} {} leaves less than {:.0f} % of the device free", option,
                         r.value + r.granularity, 100 * kHeadroom);
    case LargestResult::Stop::kModel:
      return "the model has no more positions";
    case LargestResult::Stop::kSearch:
      return "larger ones were not tried";
  }
  return "";
}

Json json_of(const LargestResult& r, const std::string& option, const Job& job) {
  constexpr const char* kStops[] = {"memory", "model", "search"};
  Json out;
  out["option"] = option;
  out["largest"] = r.value > 0 ? Json(r.value) : Json(nullptr);
  out["granularity"] = r.granularity;
  out["stopped_by"] = kStops[static_cast<int>(r.stop)];
  if (!r.evaluation) return out;
  out["step_time_s"] = to_seconds(r.evaluation->result.step_time);
  out["samples_per_s_per_gpu"] = r.evaluation->samples_per_second_per_gpu(job);
  out["tokens_per_s_per_gpu"] = r.evaluation->tokens_per_second_per_gpu();
  out["device_peak_bytes"] = r.evaluation->result.memory.device_peak.value;
  out["device_capacity_bytes"] = r.evaluation->result.memory.capacity.value;
  return out;
}

}  // namespace

int answer_largest(const Job& job, Arguments& a, const SimulationOptions& options) {
  const std::string option = a.text("largest");
  if (a.has(option)) a.report(option, "is what --largest looks for", "leave one of them out");
  if (option == "seq" && job.model && !job.has_tokens())
    a.report("largest", fmt::format("{} takes no tokens", job.model->name), "micro-batch");
  a.check();
  const LargestOf what = option == "seq" ? LargestOf::kSequence : LargestOf::kMicroBatch;
  const LargestResult r = largest(job, what, options);
  const Job found = r.value > 0 ? with_value(job, what, r.value) : job;
  const int code = r.evaluation ? kOk : kTargetMissed;
  if (a.flag("json")) return print_json(json_of(r, option, found)), code;
  std::string out =
      fmt::format("{} · {} · {}\n\n", job.model->name, describe_machines(job.hardware, job.gpus),
                  describe_precision(job));
  if (!r.evaluation)
    return print(out + fmt::format("  Not even --{} {} fits with {:.0f} % of the device free: {}\n",
                                   option, r.smallest, 100 * kHeadroom,
                                   ways_to_fit(with_value(job, what, r.smallest)))),
           code;
  const Evaluation& e = *r.evaluation;
  out += fmt::format("  Largest --{}: {}      {}\n", option, r.value, stop_text(r, option));
  out += fmt::format(
      "  there   {} of {}      step {}      {}\n", format_memory(e.result.memory.device_peak),
      format_memory(e.result.memory.capacity), format_time(e.result.step_time),
      job.has_tokens() ? fmt::format("{:.0f} tok/s/GPU", e.tokens_per_second_per_gpu())
                       : fmt::format("{:.1f} samples/s/GPU", e.samples_per_second_per_gpu(found)));
  return print(out), kOk;
}

}  // namespace foreshard::cli
