#include "exec/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/answer_of.h"
#include "cli/commands.h"
#include "cli/job_options.h"
#include "cli/numerics.h"
#include "cli/output.h"
#include "core/format.h"
#include "core/json.h"
#include "exec/emulation.h"
#include "report/trace_document.h"
#include "schedules/json.h"
#include "schedules/planner/planner.h"
#include "schedules/requested_bytes.h"
#include "schedules/structure.h"
#include "schedules/validate.h"
#include "study/evaluate.h"

namespace foreshard::cli {
namespace {

/// Wall-clock time that one emulated step should take at least: shorter work cannot be timed by a
/// host's clock.
constexpr double kEmulatedStep = 2.0;

/// Median of the steady steps (all but the first), slowest rank each.
Time measured_step(const Trace& trace) {
  std::map<std::int32_t, Time> longest;
  for (const StepTime& t : trace.step_times)
    longest[t.step] = std::max(longest[t.step], t.end - t.start);
  std::vector<Time> times;
  for (const auto& [step, time] : longest)
    if (step > 0 || longest.size() == 1) times.push_back(time);
  std::sort(times.begin(), times.end());
  return times.empty() ? Time(0) : times[times.size() / 2];
}

/// Steps of a long run that are simulated; later ones reuse memory as the last of them.
constexpr int kSimulatedSteps = 12;

/// The run as the named machine would do it.
SimulationResult predict_run(const Schedule& schedule, const std::string& hardware,
                             const RunOptions& run) {
  SimulationOptions options;
  options.detail = Detail::kTrace;
  options.folding = Folding::kUnfolded;
  options.steps = std::min(run.steps, kSimulatedSteps);
  options.allocator = run.allocator;
  options.device_memory = run.device_memory;
  return simulate_on(schedule, load_hardware(hardware), options);
}

/// Durations of a prediction, slowed down until a host can keep them.
EmulatedTimes emulation_for(const Schedule& schedule, const SimulationResult& predicted,
                            double scale) {
  EmulatedTimes out = emulated_times(schedule, *predicted.trace);
  out.time_scale =
      scale > 0 ? scale
                : std::max(1.0, kEmulatedStep / std::max(1e-9, to_seconds(predicted.step_time)));
  return out;
}

Json json_of(const Schedule& schedule, const Trace& t, const AnswerMemory& memory,
             const std::optional<Numerics>& numerics) {
  Json out;
  out["model"] = schedule.model;
  out["ranks"] = schedule.world;
  out["steps"] = t.losses.size();
  out["losses"] = t.losses;
  out["gradient_norms"] = t.gradient_norms;
  out["step_time_s"] = to_seconds(measured_step(t));
  out["timing_valid"] = t.timing_valid;
  out["overruns"] = t.overruns;
  StepAnswer carrier;
  carrier.memory = memory;
  out["memory"] = to_json(carrier)["memory"];
  const auto value = [&](double Numerics::*member) {
    return numerics ? Json((*numerics).*member) : Json(nullptr);
  };
  out["numerics"] = {{"max_relative_difference", value(&Numerics::max_relative_difference)},
                     {"difference", value(&Numerics::difference)},
                     {"allowed", value(&Numerics::allowed)},
                     {"within", numerics ? Json(numerics->within()) : Json(nullptr)}};
  std::vector<std::string> notes = schedule.remarks;
  notes.insert(notes.end(), t.notes.begin(), t.notes.end());
  out["notes"] = notes;
  return out;
}

std::string verdict(const Numerics& n) {
  if (n.within()) return "";
  return fmt::format(
      "  TOO LARGE: it does not train as the unsharded job does\n"
      "  (a difference of {:.2g} where rounding explains {:.2g})",
      n.difference, n.allowed);
}

std::string text_of(const Schedule& schedule, const Trace& t, const AnswerMemory& memory,
                    const std::optional<Numerics>& numerics) {
  std::string out =
      fmt::format("{} on {} ranks (threads of this machine)\n", schedule.model, schedule.world);
  for (std::size_t i = 0; i < t.losses.size(); ++i) {
    out += fmt::format("  step {:<3} loss {:.6f}", i, t.losses[i]);
    if (i < t.gradient_norms.size())
      out += fmt::format("   gradient norm {:.6f}", t.gradient_norms[i]);
    out += "\n";
  }
  out += fmt::format("  step time {} (median)   allocated peak {} B   reserved {}\n",
                     format_time(measured_step(t)), with_thousands(memory.allocated_peak.value),
                     format_memory(memory.reserved_peak));
  if (numerics)
    out += fmt::format("  largest relative difference to the unsharded run: {:.2g}{}\n",
                       numerics->max_relative_difference, verdict(*numerics));
  const auto finite = [](double x) { return std::isfinite(x); };
  if (!std::all_of(t.losses.begin(), t.losses.end(), finite) ||
      !std::all_of(t.gradient_norms.begin(), t.gradient_norms.end(), finite))
    out +=
        "  note: a loss or gradient norm is not finite: the initial weights or the dtype do not "
        "suit "
        "this model\n";
  for (const std::string& n : schedule.remarks) out += "  note: " + n + "\n";
  for (const std::string& n : t.notes) out += "  note: " + n + "\n";
  if (!t.timing_valid)
    out += fmt::format("  {} overruns: this machine was too busy, the times say nothing\n",
                       t.overruns);
  return out;
}

/// A plan of a large model is refused before it starts to allocate.
void require_room(const Schedule& schedule, const std::string& file, Bytes device_memory) {
  for (const RankProgram& p : schedule.programs) {
    const Bytes need = most_requested(p, 1);
    if (need <= device_memory) continue;
    throw InputError(
        Issue{file, "",
              fmt::format("{}: a rank of this plan needs at least {}, each has {}", schedule.model,
                          format_memory(need), format_memory(device_memory)),
              "a small model and a short --seq (foreshard plan llama-tiny --gpus 4 "
              "--seq 32), or --device-memory GIB"});
  }
}

/// The reference of --reference, or the one that the plan carries: the same model on one rank with
/// the whole batch.
std::optional<Numerics> numerics_of(Arguments& a, const std::string& file, const Schedule& schedule,
                                    const RunOptions& options, const Trace& trace) {
  RunOptions plain = options;
  plain.emulate.reset();
  plain.reuse.clear();
  plain.record_spans = false;
  const std::optional<Schedule> reference =
      a.has("reference") ? read_schedule_file(a.text("reference")) : read_reference_file(file);
  if (!reference) return std::nullopt;
  if (reference->world != 1) {
    throw InputError(Issue{a.text("reference", file), "world",
                           fmt::format("found {}, the reference runs on 1 rank", reference->world),
                           ""});
  }
  return compare_to_reference(schedule, trace, *reference, plain);
}

int run_plan(Arguments& a) {
  const std::string file = a.positional(0);
  if (a.text("backend", "cpu") != "cpu")
    a.report("backend", fmt::format("found \"{}\"", a.text("backend")), "allowed: cpu");
  RunOptions options;
  options.steps = static_cast<int>(a.integer("steps", 0, 1, 100'000));
  options.watchdog = std::chrono::milliseconds(a.integer("watchdog", 30, 1, 86'400) * 1000);
  constexpr double kGiB = 1 << 30;
  options.device_memory = Bytes(
      static_cast<std::int64_t>(a.bytes("device-memory", 4 * kGiB, kGiB, 1 << 20, 1e5 * kGiB)));
  try {
    options.allocator = parse_alloc_conf(a.text("alloc-conf"));
  } catch (const InputError& e) {
    a.report(e);
  }
  options.mode =
      a.text("streams", "threads") == "inline" ? StreamMode::kInline : StreamMode::kThreads;
  const double scale = a.number("time-scale", 0, 1e-3, 1e9);
  const bool emulate = a.yes_no("emulate-links", false);
  const std::int64_t ranks = a.integer("ranks", 0, 1, kMostExecutedRanks);
  a.check();
  const Schedule schedule = read_schedule_file(file);
  if (ranks > 0 && ranks != schedule.world)
    throw InputError(Issue{"--ranks", "",
                           fmt::format("{} differs from the plan's {}", ranks, schedule.world),
                           "plan again with --gpus " + std::to_string(ranks)});
  const bool validated = a.yes_no("validate", true);
  if (validated) require_valid(schedule, file);
  require_room(schedule, file, options.device_memory);
  if (validated || emulate) {
    SimulationResult predicted = predict_run(schedule, a.text("on", "dgx-h100"), options);
    options.reuse = std::move(predicted.trace->reuse);
    if (emulate) options.emulate = emulation_for(schedule, predicted, scale);
  }
  RunResult result = run(schedule, options);
  const std::optional<Numerics> numerics = numerics_of(a, file, schedule, options, result.trace);
  const AnswerMemory memory = memory_of(result.trace, options.device_memory);
  const std::string out = a.flag("json")
                              ? json_of(schedule, result.trace, memory, numerics)
                                        .dump(1, ' ', false, Json::error_handler_t::replace) +
                                    "\n"
                              : text_of(schedule, result.trace, memory, numerics);
  if (a.has("trace"))
    write_trace_file(make_trace_document(schedule, std::move(result.trace)), a.text("trace"));
  print(out);
  return numerics && !numerics->within() ? kTargetMissed : kOk;
}

}  // namespace

CommandSpec run_command() {
  CommandSpec c;
  c.name = "run";
  c.summary = "Executes a schedule with real tensors on CPU ranks and measures it.";
  c.examples = {{"foreshard run plan.json --steps 5 --trace measured.json",
                 "train for five steps; then foreshard compare predicted.json measured.json"},
                {"foreshard run plan.json --emulate-links yes --on dgx-h100 --steps 5",
                 "every operation takes its predicted time, stretched"}};
  c.positionals = {{"PLAN", "Schedule file of foreshard plan", true}};
  c.groups = {
      {"Run",
       {{"backend", "NAME", "Where it runs (default cpu)", {"cpu"}, false},
        {"ranks", "N", "Check that the plan is for N ranks", {}, false},
        {"steps", "N", "Optimizer steps (default: the plan's)", {}, false},
        {"streams",
         "MODE",
         "A thread for each stream, or inline in the rank's thread (default threads)",
         {"threads", "inline"},
         false},
        {"emulate-links",
         "yes|no",
         "Give every operation its predicted duration (default no)",
         {"yes", "no"},
         false},
        {"on",
         "HARDWARE",
         "Machine to emulate; memory is reused as soon as its streams would be done (default "
         "dgx-h100)",
         {},
         false},
        {"time-scale",
         "X",
         "Seconds of wall clock for an emulated second (default: a step takes two seconds)",
         {},
         false},
        {"reference",
         "PLAN",
         "Plan of the same job on one rank, to compare losses and gradient norms (default: the one "
         "in PLAN)",
         {},
         false},
        {"validate", "yes|no", "Check the plan first (default yes)", {"yes", "no"}, false},
        {"device-memory", "GIB", "Memory of each rank's device (default 4)", {}, false},
        {"alloc-conf", "TEXT", "PYTORCH_CUDA_ALLOC_CONF of each rank's allocator", {}, false},
        {"watchdog", "SECONDS", "A rank that waits longer ends the run (default 30)", {}, false}}},
      {"Answer",
       {{"json", "", "One JSON document instead of text", {}, false},
        {"trace", "FILE", "Timeline for ui.perfetto.dev and foreshard compare", {}, false}}}};
  c.run = run_plan;
  return c;
}

}  // namespace foreshard::cli
