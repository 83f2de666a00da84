#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/job_options.h"
#include "cli/output.h"
#include "cli/plan_file.h"
#include "core/json.h"
#include "schedules/json.h"
#include "schedules/planner/planner.h"
#include "schedules/text.h"
#include "schedules/validate.h"

namespace foreshard::cli {
namespace {

int make_plan(Arguments& a) {
  Job job = read_job(a, {.hardware = JobNeeds::Hardware::kOptional});
  PlanOptions options = plan_file_options(job);
  options.steps = a.integer("steps", options.steps, options.steps, 100);
  options.executable = a.yes_no("executable", true);
  a.check();
  const PlanFile file = plan_file_of(job, options, a.yes_no("reference", true));
  const Schedule& schedule = file.schedule;
  if (a.has("output")) file.write(a.text("output"));
  if (a.flag("json")) {
    std::string text;
    write_schedule(schedule, text, file.reference ? &*file.reference : nullptr);
    print(text);
  } else if (a.has("output")) {
    print(describe_schedule(schedule) + fmt::format("wrote {}; foreshard show {} prints a step\n",
                                                    a.text("output"), a.text("output")));
  } else {
    print(describe_schedule(schedule) + "\n" + describe_step(schedule));
  }
  return kOk;
}

int show(Arguments& a) {
  const std::string file = a.positional(0);
  const std::int64_t program = a.integer("program", 0, 0, 1 << 20);
  const std::int64_t step = a.integer("step", -1, 0, 1 << 20);
  a.check();
  const Schedule schedule = read_schedule_file(file);
  ShowOptions options;
  options.program = static_cast<std::uint32_t>(program);
  if (program >= static_cast<std::int64_t>(schedule.programs.size()))
    throw InputError(Issue{"--program", "", fmt::format("{} does not exist", program),
                           fmt::format("the file has {}", schedule.programs.size())});
  const std::size_t steps = schedule.programs[static_cast<std::size_t>(program)].steps.size();
  if (step >= static_cast<std::int64_t>(steps))
    throw InputError(Issue{"--step", "", fmt::format("{} does not exist", step),
                           fmt::format("the file has {} steps, the first is 0", steps)});
  if (step >= 0) options.step = static_cast<std::size_t>(step);
  options.memory = a.yes_no("memory", true);
  const auto findings = validate(schedule);
  if (a.flag("json")) {
    std::string text;
    write_schedule(schedule, text);
    print(text);
  } else {
    print(describe_schedule(schedule));
    if (!a.flag("summary")) print("\n" + describe_step(schedule, options));
  }
  for (const ScheduleFinding& f : findings) warn(file + ": " + text_of(schedule, f));
  return findings.empty() ? kOk : kWrongInput;
}

}  // namespace

CommandSpec plan_command() {
  CommandSpec c;
  c.name = "plan";
  c.summary = "Writes the schedule of a job: every instruction that the host of one rank issues.";
  c.examples = {{"foreshard plan llama-tiny --gpus 4 --seq 32 -o plan.json",
                 "plan, check and write; small enough for foreshard run"},
                {"foreshard plan llama-tiny --gpus 4 --seq 32", "print one step of a small model"}};
  c.positionals = {model_argument()};
  c.groups = job_options();
  c.groups.push_back(
      {"Answer",
       {{"output", "FILE", "Schedule file (docs/formats/schedule.md)", {}, false},
        {"json", "", "The schedule file to standard output", {}, false},
        {"steps",
         "N",
         "Optimizer steps to write out (default and least: until the last one repeats; 2, with DDP "
         "3 or 4)",
         {},
         true},
        {"reference",
         "yes|no",
         "With the same job on one rank, to which foreshard run compares (default yes; "
         "models that a few CPU ranks can train)",
         {"yes", "no"},
         true},
        {"executable",
         "yes|no",
         "With tensors, for foreshard run (default yes)",
         {"yes", "no"},
         true}}});
  c.run = make_plan;
  return c;
}

CommandSpec show_command() {
  CommandSpec c;
  c.name = "show";
  c.summary = "Prints a schedule for people and checks it.";
  c.examples = {
      {"foreshard show plan.json", "units, then the instructions of the last step"},
      {"foreshard show plan.json --step 0 --memory no", "the first step without memory requests"}};
  c.positionals = {{"PLAN", "Schedule file", true}};
  c.groups = {{"Answer",
               {{"json", "", "The schedule as the program reads it", {}, false},
                {"summary", "", "Only the head", {}, false},
                {"step", "N", "Which step (default: the last)", {}, false},
                {"program", "N", "Which class of ranks (default 0)", {}, false},
                {"memory", "yes|no", "Show alloc and free (default yes)", {"yes", "no"}, false}}}};
  c.run = show;
  return c;
}

}  // namespace foreshard::cli
