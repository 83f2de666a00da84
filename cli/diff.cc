#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "cli/commands.h"
#include "cli/difference_of.h"
#include "cli/job_options.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "core/format.h"
#include "core/json.h"
#include "schedules/json.h"
#include "schedules/planner/framework_table.h"
#include "schedules/validate.h"

namespace foreshard::cli {
namespace {

constexpr const char* kDefaultMachine = "dgx-h100";

bool ends_with(const std::string& text, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](const char* e) { return text.ends_with(e); });
}

/// How one side was given: a plan file, a file of options, or options in one word.
enum class SideForm { kPlan, kOptionFile, kOptions };

SideForm form_of(const std::string& text) {
  if (ends_with(text, {".yaml", ".yml"})) return SideForm::kOptionFile;
  return ends_with(text, {".json"}) && text.find(' ') == std::string::npos ? SideForm::kPlan
                                                                           : SideForm::kOptions;
}

/// The command line that a side stands for: options as of `foreshard simulate`.
CommandSpec side_spec() {
  CommandSpec c;
  c.name = "diff";
  c.positionals = {model_argument()};
  c.positionals[0].required = false;
  c.groups = job_options();
  return c;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string w; in >> w;) words.push_back(w);
  return words;
}

struct Side {
  ComparedPlan plan;
  Arguments given;        ///< Of a configuration; empty for a plan.
  std::string framework;  ///< Title without options; empty for a plan.
  std::int64_t gpus = 0;
};

Side read_plan_side(const std::string& file, const std::string& machine) {
  Side side;
  if (const Json json = parse_json(read_text_file(file), file);
      json.is_object() && !json.contains("format") &&
      (json.contains("model_type") || json.contains("architectures")))
    throw InputError(Issue{file, "", "is a model's config.json, where a side is a plan or options",
                           fmt::format("\"--model {}\" with the other options", file)});
  Schedule schedule = read_schedule_file(file);
  require_valid(schedule, file);
  side.gpus = schedule.world;
  side.plan.title = file;
  side.plan.subject = fmt::format("{} on {} GPUs of {}", schedule.model, schedule.world, machine);
  side.plan.evaluation.result = simulate_on(schedule, load_hardware(machine));
  side.plan.evaluation.schedule = std::move(schedule);
  return side;
}

/// Options of the side, then those of the command line that it does not set itself.
Side read_job_side(const std::string& text, SideForm form, const Arguments& common) {
  const CommandSpec spec = side_spec();
  Side side;
  side.given = parse_arguments(spec, form == SideForm::kOptionFile
                                         ? std::vector<std::string>{"--config", text}
                                         : words_of(text));
  for (const OptionGroup& g : spec.groups)
    for (const OptionSpec& o : g.options)
      if (const Arguments::Value* v = common.find(o.name); v != nullptr && o.name != "config")
        side.given.set(o.name, *v);
  if (side.given.positional(0).empty() && common.has("model"))
    side.given.add_positional(common.text("model"));
  side.given.set("on", {kDefaultMachine, "--on"});
  const Job job = read_job(side.given);
  side.given.check();
  side.gpus = job.gpus;
  side.framework = side.plan.title = std::string(row_of(job.config.framework).title);
  side.plan.subject =
      fmt::format("{} on {}", job.model->name, describe_machines(job.hardware, job.gpus));
  side.plan.evaluation = evaluate(job);
  return side;
}

Side read_side(const std::string& text, const Arguments& common) {
  const SideForm form = form_of(text);
  if (form == SideForm::kPlan) return read_plan_side(text, common.text("on", kDefaultMachine));
  return read_job_side(text, form, common);
}

/// Jobs are told apart by the options that differ: the first side names them, the second has only
/// the values if one option is all there is.
void tell_apart(Side& a, Side& b) {
  if (a.framework.empty() || b.framework.empty()) return;
  const bool one_framework = a.framework == b.framework;
  std::vector<std::string> differing;
  for (const OptionGroup& g : job_options())
    for (const OptionSpec& o : g.options)
      if (o.name != "config" && o.name != "framework" &&
          a.given.text(o.name, "default") != b.given.text(o.name, "default"))
        differing.push_back(o.name);
  for (const std::string& o : differing) {
    a.plan.title += fmt::format(", {} {}", o, a.given.text(o, "default"));
    b.plan.title += fmt::format(", {} {}", o, b.given.text(o, "default"));
  }
  if (one_framework && differing.size() == 1) b.plan.title = b.given.text(differing[0], "default");
}

int run_diff(Arguments& a) {
  std::vector<Side> sides;
  for (const std::size_t i : {0, 1}) {
    try {
      sides.push_back(read_side(a.positional(i), a));
    } catch (const InputError& e) {
      a.report(e);
    }
  }
  a.check();
  tell_apart(sides[0], sides[1]);
  PlanDifference d = difference_of(sides[0].plan, sides[1].plan);
  if (!a.has("on") && (sides[0].framework.empty() || sides[1].framework.empty()))
    d.notes.push_back(
        fmt::format("times are those on {}; --on names another machine", kDefaultMachine));
  if (a.flag("json"))
    print_json(to_json(d));
  else
    print(text_of(d, a.flag("table")));
  return kOk;
}

}  // namespace

CommandSpec diff_command() {
  CommandSpec c;
  c.name = "diff";
  c.summary =
      "What changes from one plan to another? Collectives, buffers, waits, and what each costs.";
  c.examples = {
      {"foreshard diff \"--framework fsdp1\" \"--framework fsdp2\" --model llama3-8b --gpus 8 --on "
       "dgx-h100",
       "two frameworks; options outside the quotes hold for both"},
      {"foreshard diff \"llama3-8b --reshard true\" \"llama3-8b --reshard false\" --gpus 16 --on "
       "dgx-h100",
       "one option"},
      {"foreshard diff a.yaml b.yaml",
       "two files of options, as for --config; \"model: NAME\" in them"},
      {"foreshard diff before.json after.json --on dgx-h100", "two schedules of foreshard plan"}};
  c.positionals = {
      {"A",
       "Schedule file (.json), file of options (.yaml), or options of foreshard simulate in quotes",
       true},
      {"B", "The same", true}};
  c.groups = job_options();
  c.groups[0].options.insert(
      c.groups[0].options.begin(),
      OptionSpec{"model", "MODEL", "Model of both, where a side names none", {}, false});
  c.groups.push_back({"Answer",
                      {{"table", "", "Also every row with its counts and bytes", {}, false},
                       {"json", "", "One JSON document instead of text", {}, false}}});
  c.run = run_diff;
  return c;
}

}  // namespace foreshard::cli
