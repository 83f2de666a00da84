#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/job_options.h"
#include "cli/output.h"
#include "cli/torch_code.h"
#include "cli/tune_frameworks.h"
#include "cli/tune_groupings.h"
#include "cli/wrap_points.h"
#include "core/format.h"
#include "core/json.h"
#include "study/job_change.h"
#include "study/tune.h"
#include "study/ways_to_fit.h"

namespace foreshard::cli {
namespace {

std::string granularity(const WrapChoice& c) {
  return c.blocks_per_unit == 0 ? "all" : std::to_string(c.blocks_per_unit);
}
std::string gib(Bytes b) { return fmt::format("{:.1f}", static_cast<double>(b.value) / (1 << 30)); }

Json choice_json(const WrapChoice& c) {
  Json out;
  out["blocks_per_unit"] = c.blocks_per_unit;
  out["reshard"] = c.reshard;
  out["root_split"] = c.root_split;
  out["units"] = c.units;
  out["options"] = c.options;
  out["step_time_s"] = to_seconds(c.step);
  out["device_peak_bytes"] = c.memory.value;
  out["exposed_communication_s"] = to_seconds(c.exposed_communication);
  out["exposed_host_s"] = to_seconds(c.exposed_host);
  out["hidden_communication"] = c.hidden_share();
  out["tokens_per_s_per_gpu"] = c.tokens_per_s_per_gpu;
  out["fits"] = c.fits;
  out["allocator_retries_total"] = c.retries;
  out["pareto"] = c.pareto;
  out["chosen"] = c.chosen;
  out["verdict"] = c.verdict;
  return out;
}

Json json_of(const Job& job, const TuneResult& r) {
  Json out;
  out["model"] = job.model->name;
  out["machines"] = describe_machines(job.hardware, job.gpus);
  out["blocks"] = r.blocks;
  out["device_capacity_bytes"] = r.capacity.value;
  out["choices"] = Json::array();
  for (const WrapChoice& c : r.choices) out["choices"].push_back(choice_json(c));
  out["reason"] = r.reason;
  out["chosen"] = r.chosen < r.choices.size() ? Json(r.choices[r.chosen].options) : Json(nullptr);
  return out;
}

std::string text_of(const Job& job, const TuneResult& r, std::size_t most) {
  std::string out = fmt::format(
      "{} · {} · {}\n{} ways to wrap {} blocks; * = on the front of time and memory\n\n",
      job.model->name, describe_machines(job.hardware, job.gpus), describe_precision(job),
      r.choices.size(), r.blocks);
  out += fmt::format("  {:>11} {:>6}  {:<10} {:<10} {:>10} {:>9} {:>7}   {}\n", "blocks/unit",
                     "units", "resharding", "root split", "step", "GiB", "overlap", "verdict");
  std::size_t shown = 0;
  for (const WrapChoice& c : r.choices) {
    if (shown >= most && !c.pareto && !c.chosen) continue;
    ++shown;
    out += fmt::format("  {:>11} {:>6}  {:<10} {:<10} {:>10} {:>9} {:>5.0f} % {} {}\n",
                       granularity(c), c.units, c.reshard ? "yes" : "no",
                       c.root_split ? "yes" : "no", format_time(c.step), gib(c.memory),
                       100 * c.hidden_share(), c.pareto ? "*" : " ", c.verdict);
  }
  if (shown < r.choices.size())
    out += fmt::format("  ... {} slower ones with --all\n", r.choices.size() - shown);
  if (r.chosen == r.choices.size())
    return out +
           fmt::format("\n  Nothing fits into {} GiB: {}.\n", gib(r.capacity), ways_to_fit(job));
  const WrapChoice& c = r.choices[r.chosen];
  out += fmt::format("\n  Choose {}: {}.\n", c.options, r.reason);
  return out + "  Calls for PyTorch: --export torch\n";
}

/// Options that name one of the choices leave the others out.
TuneLimits limits_of(Arguments& a, const ParallelConfig& c) {
  TuneLimits limits;
  if (a.has("root-split")) limits.root_split = c.wrap.root_split;
  if (a.has("reshard")) {
    if (c.reshard.kind == Reshard::Kind::kGroup)
      a.report("reshard", "tune tries no smaller groups", "true or false, or leave it out");
    limits.reshard = c.reshard.kind == Reshard::Kind::kYes;
  }
  if (a.has("fsdp1-strategy")) {
    if (c.fsdp1.strategy == Fsdp1Options::Strategy::kNoShard)
      a.report("fsdp1-strategy", "no_shard forms no units to tune", "leave it out");
    limits.reshard = !keeps_gathered(c.fsdp1.strategy);
  }
  if (!a.has("wrap")) return limits;
  switch (c.wrap.kind) {
    case WrapPolicy::Kind::kBlocks:
      limits.blocks_per_unit = 1;
      break;
    case WrapPolicy::Kind::kEveryK:
      limits.blocks_per_unit = c.wrap.every;
      break;
    case WrapPolicy::Kind::kRootOnly:
      limits.blocks_per_unit = 0;
      break;
    default:
      a.report("wrap", "is not among what tune tries", "blocks, every:K or root, or leave it out");
  }
  return limits;
}

int tune(Arguments& a) {
  if (a.has("frameworks")) return tune_frameworks(a);
  const Job job = read_job(a);
  const TuneLimits limits = limits_of(a, job.config);
  if (a.has("export") && a.flag("json"))
    a.report("json", "does not go with --export, which prints Python");
  a.check();
  if (a.flag("all-groupings")) return tune_groupings(job, a);
  const TuneResult r = tune(job, progress("wrap study"), limits);
  if (a.has("export")) {
    if (r.chosen == r.choices.size()) {
      warn("nothing fits: there is no wrapping to export");
      return kTargetMissed;
    }
    print(torch_code(with_choice(job, r.choices[r.chosen])));
  } else if (a.flag("json")) {
    print_json(json_of(job, r));
  } else {
    print(text_of(job, r, a.flag("all") ? r.choices.size() : 14));
  }
  return r.chosen == r.choices.size() ? kTargetMissed : kOk;
}

}  // namespace

std::vector<WrapPoint> wrap_points(const TuneResult& result) {
  std::vector<WrapPoint> out;
  for (const WrapChoice& c : result.choices) {
    const std::string label =
        fmt::format("{} block{}, {}{}", granularity(c), c.blocks_per_unit == 1 ? "" : "s",
                    c.reshard ? "reshard" : "keep", c.root_split ? "" : ", no root split");
    out.push_back({label, c.step, c.memory, c.fits, c.pareto, c.chosen, false, c.verdict});
  }
  return out;
}

std::vector<WrapPoint> wrap_points(const Job& job, const std::function<void(int, int)>& progress) {
  return wrap_points(tune(job, progress));
}

CommandSpec tune_command() {
  CommandSpec c;
  c.name = "tune";
  c.summary = "How should I wrap and shard it? Tries all granularities, resharding and root split.";
  c.examples = {
      {"foreshard tune llama3-8b --gpus 16 --on 2x-a100-80-200g --seq 4096",
       "time and memory of every wrapping, and which to take"},
      {"foreshard tune llama3-8b --gpus 16 --on 2x-a100-80-200g --export torch",
       "the calls of the chosen one"},
      {"foreshard tune llama3-70b --gpus 64 --on dgx-h100 --checkpoint full --all-groupings",
       "units of any sizes, proven optimal in a model of overlap"},
      {"foreshard tune llama3-8b --gpus 8 --on dgx-h100 --frameworks all",
       "FSDP2, FSDP1, ZeRO and DDP in one table"}};
  c.positionals = {model_argument()};
  c.groups = job_options();
  c.groups.push_back({"Answer",
                      {{"json", "", "One JSON document instead of text", {}, false},
                       {"all", "", "Every choice, not only the best", {}, false},
                       {"all-groupings",
                        "",
                        "Every contiguous grouping of the blocks, searched exactly",
                        {},
                        false},
                       {"frameworks",
                        "all|NAME,...",
                        "In place of wrappings: one table of this job under each framework",
                        {},
                        false},
                       {"export", "FORM", "The chosen wrapping as code", {"torch"}, false}}});
  c.run = tune;
  return c;
}

}  // namespace foreshard::cli
