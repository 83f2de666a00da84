#pragma once

// How a command of the program describes itself, and what it gets. One table serves the parser, the
// help, the configuration file and shell completion; CLI11 stays behind parse.cc.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace foreshard::cli {

/// One option of a command: "--name VALUE", or a flag if `value` is empty.
struct OptionSpec {
  std::string name;   ///< Without dashes.
  std::string value;  ///< Placeholder ("N", "FILE"); empty for a flag.
  std::string help;
  std::vector<std::string> choices;  ///< If not empty, the only values.
  bool in_config_file = false;       ///< May stand in a --config file.
};

struct OptionGroup {
  std::string title;
  std::vector<OptionSpec> options;
  bool on_demand = false;  ///< --help names the group only, --help-all lists its options.
};

struct PositionalSpec {
  std::string name;  ///< "MODEL"
  std::string help;
  bool required = true;
  std::vector<std::string> words = {};  ///< For shell completion: what may stand there.
};

struct Example {
  std::string line, meaning;
};

/// What the user gave to one command. Typed access collects every problem; `check()` throws them
/// together.
class Arguments {
 public:
  struct Value {
    std::string text;
    std::string where;  ///< "--gpus", or "job.yaml: line 3" for a configuration file.
  };

  /// Later calls do not replace earlier ones: the command line comes first and wins over the
  /// configuration file.
  void set(const std::string& name, Value value) { values_.emplace(name, std::move(value)); }
  void add_positional(std::string text) { positionals_.push_back(std::move(text)); }

  bool has(const std::string& name) const { return values_.count(name) != 0; }
  bool flag(const std::string& name) const { return has(name) && values_.at(name).text != "no"; }
  const Value* find(const std::string& name) const;
  const std::vector<std::string>& positionals() const { return positionals_; }
  std::string positional(std::size_t i, std::string fallback = {}) const;

  /// Each returns the fallback where the option is absent or wrong; what is wrong is reported.
  std::string text(const std::string& name, std::string fallback = {}) const;
  std::int64_t integer(const std::string& name, std::int64_t fallback, std::int64_t min,
                       std::int64_t max);
  double number(const std::string& name, double fallback, double min, double max);
  /// A whole number that may end in K, M, B or T; K is `thousand` (see cli/quantity.h).
  std::int64_t count(const std::string& name, std::int64_t fallback, std::int64_t min,
                     std::int64_t max, double thousand);
  /// Bytes with a unit ("80GB", "512MiB"); a bare number is of `unit` bytes.
  double bytes(const std::string& name, double fallback, double unit, double min, double max);
  bool yes_no(const std::string& name, bool fallback);
  std::vector<std::string> list(const std::string& name) const;  ///< Split at commas.

  void report(const std::string& option, std::string message, std::string hint = {});
  /// Adds the problems of another reader.
  void report(const InputError& error);
  bool clean() const { return issues_.empty(); }
  /// Something that was chosen for the user and that they should know; printed with the answer, on
  /// standard error.
  void note(std::string text) { notes_.push_back(std::move(text)); }
  const std::vector<std::string>& notes() const { return notes_; }
  void check() const;  ///< InputError with all problems, if there is one.

 private:
  std::map<std::string, Value> values_;
  std::vector<std::string> positionals_;
  std::vector<Issue> issues_;
  std::vector<std::string> notes_;
};

struct CommandSpec {
  std::string name;  ///< One or two words: "simulate", "models describe".
  std::string summary;
  std::vector<Example> examples;
  std::vector<PositionalSpec> positionals;
  std::vector<OptionGroup> groups;
  std::function<int(Arguments&)> run;  ///< Returns the exit code.
};

/// Every command, in the order of the help.
const std::vector<CommandSpec>& commands();

/// Exit codes of the program.
inline constexpr int kOk = 0, kBug = 1, kWrongInput = 2, kRunFailed = 3, kTargetMissed = 4;

}  // namespace foreshard::cli
