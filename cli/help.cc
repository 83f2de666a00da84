#include <fmt/format.h>

#include <algorithm>

#include "cli/parse.h"

namespace foreshard::cli {
namespace {

constexpr std::size_t kHelpColumn = 34, kHelpWidth = 100;

/// Text broken into lines that start at kHelpColumn.
std::string wrapped(const std::string& text) {
  std::string out;
  std::size_t at = 0, column = kHelpColumn;
  while (at < text.size()) {
    std::size_t space = std::min(text.find(' ', at), text.size());
    if (column + (space - at) > kHelpWidth && column > kHelpColumn) {
      out += "\n" + std::string(kHelpColumn, ' ');
      column = kHelpColumn;
    }
    out += text.substr(at, space - at + 1);
    column += space - at + 1;
    at = space + 1;
  }
  return out;
}

std::string option_line(const OptionSpec& o) {
  std::string left =
      (o.name == "output" ? "  -o, --" : "  --") + o.name + (o.value.empty() ? "" : " " + o.value);
  std::string help = o.help;
  if (!o.choices.empty() && o.value.find('|') == std::string::npos)
    help += fmt::format(" [{}]", fmt::join(o.choices, ", "));
  if (left.size() + 2 > kHelpColumn)
    return left + "\n" + std::string(kHelpColumn, ' ') + wrapped(help) + "\n";
  return fmt::format("{:<{}}{}\n", left, kHelpColumn, wrapped(help));
}

std::string examples_text(const CommandSpec& c) {
  std::string out;
  for (const Example& e : c.examples) out += fmt::format("  {}\n      {}\n", e.line, e.meaning);
  return out;
}

}  // namespace

std::string help_of(const CommandSpec& c, bool all) {
  std::string out =
      c.summary + "\n\nExamples\n" + examples_text(c) + "\nUsage: foreshard " + c.name;
  for (const PositionalSpec& p : c.positionals)
    out += p.required ? " " + p.name : " [" + p.name + "]";
  out += " [OPTIONS]\n";
  for (const PositionalSpec& p : c.positionals)
    out += fmt::format("{:<{}}{}\n", "  " + p.name, kHelpColumn, wrapped(p.help));
  std::string left_out;
  for (const OptionGroup& g : c.groups) {
    if (g.on_demand && !all) {
      left_out += fmt::format("{}{} ({})", left_out.empty() ? "" : ", ", g.title, g.options.size());
      continue;
    }
    out += "\n" + g.title + "\n";
    for (const OptionSpec& o : g.options) out += option_line(o);
  }
  if (!left_out.empty())
    out += fmt::format("\nOptions of one framework: {}\n  foreshard {} --help-all lists them\n",
                       left_out, c.name);
  return out;
}

std::string help_of_program() {
  std::string out = "foreshard: plan, simulate and execute sharded training\n\n";
  for (const CommandSpec& c : commands()) out += fmt::format("  {:<20} {}\n", c.name, c.summary);
  out +=
      "\n  foreshard COMMAND --help    examples and options of a command\n"
      "  foreshard completion bash   completion for the shell: source <(foreshard completion "
      "bash); or zsh\n"
      "\nExit codes: 0 fine, 2 wrong input, 3 device or run failure, 4 a target missed (nothing "
      "that was tried fits, a deadline, simulate --must-fit; run and compare: a difference), 1 a "
      "bug of "
      "ours.\n";
  return out;
}

std::string welcome() {
  return "Foreshard answers three questions about sharded training (FSDP, ZeRO, DDP) before you "
         "pay for the GPUs.\n\n"
         "  Will it fit, and how fast is it?\n"
         "    foreshard simulate llama3-8b --gpus 8 --on dgx-h100\n\n"
         "  How should I wrap and shard it?\n"
         "    foreshard tune llama3-8b --gpus 16 --on 2x-a100-80-200g --seq 4096\n\n"
         "  What should we buy?\n"
         "    foreshard size llama3-70b --tokens 1T --on dgx-h100,dgx-h200 --deadline 45d\n\n"
         "foreshard models and foreshard hw list what it knows; foreshard --help lists all "
         "commands.\n";
}

}  // namespace foreshard::cli
