// Shell completion. The script is a bash function; zsh runs it through its bashcompinit.

#include "cli/completion.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command.h"
#include "core/error.h"
#include "core/text.h"
#include "hwprofiles/profile.h"
#include "models/catalogue.h"

namespace foreshard::cli {
namespace {

using Words = std::set<std::string>;

std::string joined(const Words& words) { return fmt::format("{}", fmt::join(words, " ")); }

/// What may stand for a placeholder: the small words of "N|false|true", a machine, a model; nothing
/// for numbers and files.
Words words_of(const std::string& placeholder) {
  Words words;
  if (placeholder == "HARDWARE") {
    for (const std::string& name : hardware_names()) words.insert(name);
  } else if (placeholder == "MODEL") {
    for (const CatalogueModel& m : model_catalogue()) words.insert(m.name);
  } else if (placeholder.find('|') != std::string::npos) {
    for (const std::string& word : parts_of(placeholder, '|'))
      if (!word.empty() && std::islower(static_cast<unsigned char>(word[0]))) words.insert(word);
  }
  return words;
}

/// What may follow each command. Commands of two words come first, as the first match counts; the
/// second word itself is what may follow the first.
std::string cases_of_commands() {
  std::map<std::string, Words> of_two, of_one;
  for (const CommandSpec& c : commands()) {
    const std::size_t space = c.name.find(' ');
    Words words{"--help", "--help-all"};
    for (const OptionGroup& g : c.groups)
      for (const OptionSpec& o : g.options) words.insert("--" + o.name);
    for (const PositionalSpec& p : c.positionals) {
      words.merge(words_of(p.name));
      words.insert(p.words.begin(), p.words.end());
    }
    if (space == std::string::npos) {
      of_one[c.name].merge(words);
      continue;
    }
    of_two[c.name] = words;
    of_one[c.name.substr(0, space)].insert(c.name.substr(space + 1));
  }
  std::string out;
  for (const auto& [name, words] : of_two)
    out += fmt::format("    \"{} \"*) words=\"{}\" ;;\n", name, joined(words));
  for (const auto& [name, words] : of_one)
    out += fmt::format("    \"{} \"*) words=\"{}\" ;;\n", name, joined(words));
  return out;
}

/// Values of each option that takes one, of all commands together: an option means the same
/// everywhere.
std::string cases_of_values() {
  std::map<std::string, Words> values;
  for (const CommandSpec& c : commands())
    for (const OptionGroup& g : c.groups)
      for (const OptionSpec& o : g.options) {
        if (o.value.empty()) continue;
        Words& words = values[o.name];
        words.insert(o.choices.begin(), o.choices.end());
        words.merge(words_of(o.value));
      }
  std::string out, free;
  for (const auto& [name, words] : values) {
    if (words.empty())
      free += (free.empty() ? "--" : "|--") + name;
    else
      out += fmt::format("    --{}) words=\"{}\" ;;\n", name, joined(words));
  }
  return out + fmt::format("    {}) words=\"\" ;;\n", free);
}

std::string first_words() {
  Words words{"completion", "help"};
  for (const CommandSpec& c : commands()) words.insert(c.name.substr(0, c.name.find(' ')));
  return joined(words);
}

}  // namespace

std::string completion(const std::vector<std::string>& words) {
  if (words.size() != 1 || (words[0] != "bash" && words[0] != "zsh"))
    throw InputError(
        Issue{"completion", "",
              words.empty() ? "names no shell" : fmt::format("found \"{}\"", fmt::join(words, " ")),
              "bash or zsh: source <(foreshard completion bash)"});
  std::string out =
      fmt::format("# {0} completion of foreshard: source <(foreshard completion {0})\n", words[0]);
  if (words[0] == "zsh")
    out +=
        "autoload -U +X compinit && compinit\n"
        "autoload -U +X bashcompinit && bashcompinit\n";
  out +=
      "_foreshard() {\n"
      "  local current=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\" "
      "words=\"\"\n"
      "  case \"${COMP_WORDS[*]:1} \" in\n" +
      cases_of_commands() + "  esac\n  case \"$previous\" in\n" + cases_of_values() +
      "  esac\n"
      "  [ \"$COMP_CWORD\" -eq 1 ] && words=\"" +
      first_words() +
      "\"\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "  [ ${#COMPREPLY[@]} -eq 0 ] && COMPREPLY=($(compgen -f -- \"$current\"))\n"
      "  return 0\n}\n"
      "complete -o filenames -F _foreshard foreshard\n";
  return out;
}

}  // namespace foreshard::cli
