#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "cli/answer_of.h"
#include "cli/commands.h"
#include "cli/configuration.h"
#include "cli/job_options.h"
#include "cli/largest.h"
#include "cli/output.h"
#include "cli/plan_file.h"
#include "cli/wrap_points.h"
#include "core/json.h"
#include "report/html.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/planner.h"
#include "study/predict.h"

namespace foreshard::cli {
namespace {

constexpr double kGiB = 1 << 30;

/// Keeps the last step of each rank: what people look at.
Trace last_step(const Trace& trace) {
  Trace out = trace;
  std::int32_t step = 0;
  for (const StepTime& t : trace.step_times) step = std::max(step, t.step);
  std::erase_if(out.spans, [step](const Span& s) { return s.step != step; });
  std::erase_if(out.memory, [step](const MemorySample& m) { return m.step != step; });
  return out;
}

void write_html(const Job& job, const Evaluation& e, const StepAnswer& answer,
                const std::string& path) {
  HtmlReport report;
  report.answer = answer;
  const Trace trace = last_step(*e.result.trace);
  std::int32_t step = 0;
  for (const StepTime& t : trace.step_times) step = std::max(step, t.step);
  report.memory =
      memory_curve(e.schedule, trace, static_cast<std::int32_t>(e.result.memory.rank), step);
  report.trace = make_trace_document(e.schedule, trace);
  if (row_of(job.config.framework).forms_units() && !job.model->roles.blocks.empty())
    report.wrap = wrap_points(job, progress("wrap study"));
  write_html_file(report, path);
}

/// Each answer its own file: the last one would overwrite the others.
void check_files(Arguments& a) {
  std::map<std::filesystem::path, std::string> option_of;
  for (const char* option : {"html", "trace", "plan"}) {
    if (!a.has(option)) continue;
    const auto path = std::filesystem::absolute(a.text(option)).lexically_normal();
    const auto [first, added] = option_of.emplace(path, option);
    if (!added) a.report(option, "names the file of --" + first->second);
  }
}

int simulate(Arguments& a) {
  const Job job = read_job(a);
  check_files(a);
  const double device_bytes = a.bytes("device-memory", 0, kGiB, 1 << 20, 1e6 * kGiB);
  const std::int64_t steps = a.integer("steps", 0, 1, 100);
  a.check();
  SimulationOptions options;
  options.steps = static_cast<std::int32_t>(steps);
  if (device_bytes > 0) options.device_memory = Bytes(static_cast<std::int64_t>(device_bytes));
  if (a.has("largest")) return answer_largest(job, a, options);
  if (a.has("trace") || a.has("html")) options.detail = Detail::kTrace;
  const bool suggests = a.yes_no("suggest", !a.flag("json") && !a.flag("explain-memory"));
  const Prediction prediction = predict(job, options, suggests ? kMostSuggestions : 0);
  const Evaluation& e = prediction.evaluation;
  StepAnswer answer = answer_of(job, prediction);
  answer.configuration = configuration_of(a, job, simulate_command());
  if (steps > 0 && steps < steady_steps(job.config))
    answer.remarks.push_back(fmt::format(
        "--steps {}: not the steady state; the first steps also make the optimizer states and fill "
        "the allocator. From {} steps on they repeat",
        steps, steady_steps(job.config)));
  if (a.has("trace"))
    write_trace_file(make_trace_document(e.schedule, *e.result.trace), a.text("trace"));
  if (a.has("html")) write_html(job, e, answer, a.text("html"));
  if (a.has("plan")) plan_file_of(job, plan_file_options(job)).write(a.text("plan"));
  std::optional<MemoryExplanation> memory;
  if (a.flag("explain-memory"))
    memory = memory_explanation_of(job, e, study_memory(job, e, options));
  if (a.flag("json")) {
    Json document = to_json(answer);
    if (memory) document["memory_explanation"] = to_json(*memory);
    print_json(document);
  } else if (memory)
    print(text_of(*memory, terminal_style()));
  else
    print(text_of(answer, terminal_style(), a.flag("explain")));
  return a.flag("must-fit") && !answer.memory.fits ? kTargetMissed : kOk;
}

}  // namespace

CommandSpec simulate_command() {
  CommandSpec c;
  c.name = "simulate";
  c.summary = "Will it fit, and how fast is it? Predicts one configuration.";
  c.examples = {{"foreshard simulate llama3-8b --gpus 8 --on dgx-h100", "the answer in one screen"},
                {"foreshard simulate llama3-70b --gpus 64 --on dgx-h100 --seq 8192 --checkpoint "
                 "full --explain",
                 "with every collective, the critical path and the source of each number"},
                {"foreshard simulate config.json --gpus 16 --on 2x-a100-80-200g --html report.html "
                 "--trace trace.json",
                 "a Hugging Face model; a report for the browser, a timeline for ui.perfetto.dev"}};
  c.positionals = {model_argument()};
  c.groups = job_options();
  c.groups.push_back(
      {"Answer",
       {{"json", "", "One JSON document instead of text", {}, false},
        {"explain",
         "",
         "Also: collectives, critical path, owners of memory, sources of numbers",
         {},
         false},
        {"explain-memory",
         "",
         "Why the peak is what it is: the instant, the live set, what would lower it",
         {},
         false},
        {"largest",
         "OPTION",
         "The largest micro-batch or sequence that fits, in place of the answer",
         {"micro-batch", "seq"},
         false},
        {"suggest",
         "yes|no",
         "Also try changes of one option (default yes; no with --json)",
         {"yes", "no"},
         true},
        {"trace", "FILE", "Timeline for ui.perfetto.dev and foreshard compare", {}, false},
        {"html", "FILE", "Self-contained report with a wrap study", {}, false},
        {"plan", "FILE", "Writes the schedule there, as foreshard plan does", {}, false},
        {"steps",
         "N",
         "Optimizer steps to simulate, the last is the answer (default: until memory settles, at "
         "least four)",
         {},
         true},
        {"must-fit",
         "",
         "Exit code 4 where the job does not fit (else 0: that is an answer, too)",
         {},
         false},
        {"device-memory",
         "GIB",
         "Memory of each GPU in place of the profile's; also 80GB, 512MiB",
         {},
         true}}});
  c.run = simulate;
  return c;
}

}  // namespace foreshard::cli
