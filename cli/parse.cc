#include "cli/parse.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>

#include "cli/foreign_names.h"
#include "cli/output.h"

namespace foreshard::cli {
namespace {

std::vector<OptionSpec> all_options(const CommandSpec& command) {
  std::vector<OptionSpec> out;
  for (const OptionGroup& g : command.groups)
    out.insert(out.end(), g.options.begin(), g.options.end());
  return out;
}

/// Several words in one ("--framework fsdp1 --gpus 8"): an argument that is itself a list of
/// options.
bool is_quoted(const std::string& word) {
  return word.rfind("--", 0) == 0 && word.find(' ') < word.find('=');
}

std::string name_in(const std::string& word) {
  const std::size_t equals = word.find('=');
  return word.substr(2, equals == std::string::npos ? std::string::npos : equals - 2);
}

Issue no_such_option(const CommandSpec& command, const std::string& name,
                     const std::vector<std::string>& known) {
  std::string hint = foreign_option_hint(name, known);
  if (hint.empty()) {
    const std::string near = nearest_name(name, known);
    hint =
        near.empty() ? "see foreshard " + command.name + " --help" : "did you mean --" + near + "?";
  }
  return {"--" + name, "", "no such option of \"" + command.name + "\"", hint};
}

/// Options that do not exist and options without their value: CLI11 would stop at the first.
void check_words(const CommandSpec& command, const std::vector<std::string>& words) {
  const std::vector<OptionSpec> options = all_options(command);
  std::vector<std::string> known{"help", "help-all"};
  for (const OptionSpec& o : options) known.push_back(o.name);
  std::vector<Issue> issues;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& w = words[i];
    if (w == "--") break;
    if (w.rfind("--", 0) != 0 || is_quoted(w)) continue;
    const std::string name = name_in(w);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      issues.push_back(no_such_option(command, name, known));
      continue;
    }
    const auto spec = std::find_if(options.begin(), options.end(),
                                   [&](const OptionSpec& o) { return o.name == name; });
    if (spec == options.end() || spec->value.empty() || w.find('=') != std::string::npos) continue;
    const bool last = i + 1 == words.size();
    if (last || (words[i + 1].rfind("--", 0) == 0 && !is_quoted(words[i + 1])))
      issues.push_back({"--" + name, "", "needs a value",
                        spec->choices.empty()
                            ? "--" + name + " " + spec->value
                            : fmt::format("allowed: {}", fmt::join(spec->choices, ", "))});
  }
  if (!issues.empty()) throw InputError(std::move(issues));
}

/// Files that a command writes: every option of a file but the configuration, which is read.
void check_outputs(const CommandSpec& command, Arguments& arguments) {
  for (const OptionSpec& o : all_options(command)) {
    if (o.value != "FILE" || o.name == "config" || !arguments.has(o.name)) continue;
    const std::string path = arguments.text(o.name);
    if (const std::string why = why_not_writable(path); !why.empty())
      arguments.report(o.name, fmt::format("\"{}\" {}", path, why), "a file in a folder of yours");
  }
}

void check_choices(const CommandSpec& command, Arguments& arguments) {
  for (const OptionSpec& o : all_options(command)) {
    const Arguments::Value* v = arguments.find(o.name);
    if (v == nullptr || o.choices.empty()) continue;
    if (std::find(o.choices.begin(), o.choices.end(), v->text) != o.choices.end()) continue;
    const std::string foreign = foreign_value_hint(o.name, v->text);
    const std::string near = foreign.empty() ? nearest_name(v->text, o.choices) : "";
    arguments.report(
        o.name,
        fmt::format("found \"{}\"{}", v->text, near.empty() ? "" : ", nearest is \"" + near + "\""),
        fmt::format("{}{}allowed: {}", foreign, foreign.empty() ? "" : "; ",
                    fmt::join(o.choices, ", ")));
  }
}

}  // namespace

const CommandSpec& find_command(std::vector<std::string>& words) {
  const auto named = [](const std::string& name) -> const CommandSpec* {
    for (const CommandSpec& c : commands())
      if (c.name == name) return &c;
    return nullptr;
  };
  if (words.size() >= 2) {
    if (const CommandSpec* c = named(words[0] + " " + words[1])) {
      words.erase(words.begin(), words.begin() + 2);
      return *c;
    }
  }
  if (const CommandSpec* c = named(words[0])) {
    words.erase(words.begin());
    return *c;
  }
  std::vector<std::string> names;
  bool first_word = false;
  for (const CommandSpec& c : commands()) {
    names.push_back(c.name);
    first_word = first_word || c.name.rfind(words[0] + " ", 0) == 0;
  }
  if (first_word && words.size() == 1) {
    std::vector<std::string> parts;
    for (const CommandSpec& c : commands())
      if (c.name.rfind(words[0] + " ", 0) == 0) parts.push_back("foreshard " + c.name);
    throw InputError(Issue{words[0], "", "is not a command by itself",
                           fmt::format("{}", fmt::join(parts, ", "))});
  }
  const std::string given = first_word && words.size() >= 2 ? words[0] + " " + words[1] : words[0];
  const std::string near = nearest_name(given, names);
  throw InputError(Issue{given, "", "no such command",
                         near.empty() ? "see foreshard --help" : "did you mean \"" + near + "\"?"});
}

Arguments parse_arguments(const CommandSpec& command, const std::vector<std::string>& words) {
  check_words(command, words);
  CLI::App app;
  app.set_help_flag();
  const std::vector<OptionSpec> options = all_options(command);
  std::map<std::string, std::string> values;
  std::map<std::string, bool> flags;
  std::vector<std::string> positionals;
  for (const OptionSpec& o : options) {
    const std::string name = (o.name == "output" ? "-o,--" : "--") + o.name;
    if (o.value.empty())
      app.add_flag(name, flags[o.name]);
    else
      app.add_option(name, values[o.name])->take_last();  // Advice can stand behind one's own line.
  }
  app.add_option("arguments", positionals);
  std::vector<std::string> given(words.rbegin(), words.rend());
  for (std::string& w : given)
    if (is_quoted(w)) w.insert(0, 1, ' ');  // No option to CLI11 then.
  try {
    app.parse(given);
  } catch (const CLI::ParseError& e) {
    throw InputError(
        Issue{command.name, "", e.what(), "see foreshard " + command.name + " --help"});
  }
  Arguments arguments;
  for (const OptionSpec& o : options) {
    if (app.count("--" + o.name) == 0) continue;
    arguments.set(o.name, {o.value.empty() ? "yes" : values[o.name], "--" + o.name});
  }
  for (std::string& p : positionals) arguments.add_positional(std::move(p));
  if (arguments.has("config")) read_config_file(command, arguments.text("config"), arguments);
  check_choices(command, arguments);
  check_outputs(command, arguments);
  const std::size_t count = arguments.positionals().size();
  for (std::size_t i = count; i < command.positionals.size(); ++i) {
    if (command.positionals[i].required)
      arguments.report(
          InputError(Issue{command.positionals[i].name, "", "is missing",
                           "usage: foreshard " + command.name + " " + command.positionals[i].name +
                               " ...; foreshard " + command.name + " --help"}));
  }
  for (std::size_t i = command.positionals.size(); i < count; ++i)
    arguments.report(InputError(
        Issue{arguments.positional(i), "", "one argument too many",
              fmt::format("\"{}\" takes {}", command.name, command.positionals.size())}));
  return arguments;
}

}  // namespace foreshard::cli
