#pragma once

// Options that belong to one framework: how each is given, to which kinds it means something, and
// what it sets, in one place. One file for each framework's group (options_*.cc).

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "core/enum_names.h"
#include "models/module_tree.h"
#include "schedules/planner/config.h"

namespace foreshard::cli {

struct FrameworkOption {
  OptionSpec spec;
  std::vector<FrameworkKind> frameworks;  ///< Those that it means something to.
  /// Sets what was given; called only if the option was. Problems are reported to the arguments.
  std::function<void(Arguments&, ParallelConfig&)> read;
};

struct FrameworkOptions {
  std::string title;
  std::vector<FrameworkOption> options;
  /// Defaults of the command line that differ from ParallelConfig's; before the options are read.
  /// May be null, as the next two.
  std::function<void(const Arguments&, ParallelConfig&)> defaults = nullptr;
  /// What options say together; after they are read.
  std::function<void(Arguments&, ParallelConfig&)> finish = nullptr;
  /// What follows from the model.
  std::function<void(Arguments&, const Model&, ParallelConfig&)> with_model = nullptr;
};

/// All groups, in the order of the help.
const std::vector<FrameworkOptions>& framework_options();
FrameworkOptions fsdp1_options();
FrameworkOptions zero_options();
FrameworkOptions ddp_options();
FrameworkOptions sharded_optimizer_options();

/// Reads the options that were given, of all groups (which framework they are of is checked apart).
void read_framework_options(Arguments& arguments, ParallelConfig& config);
/// What follows from the model, of all groups.
void read_framework_options_with_model(Arguments& arguments, const Model& model,
                                       ParallelConfig& config);

/// Makes the options of the part of a configuration that is a framework's, for `frameworks`.
template <typename Part>
class OptionMaker {
 public:
  using Custom = std::function<void(Arguments&, Part&)>;

  OptionMaker(Part ParallelConfig::*part, std::vector<FrameworkKind> frameworks)
      : part_(part), frameworks_(std::move(frameworks)) {}

  FrameworkOption yes_no(const std::string& name, std::string help, bool Part::*field) const {
    return custom(name, "yes|no", std::move(help),
                  [name, field](Arguments& a, Part& p) { p.*field = a.yes_no(name, p.*field); },
                  {"yes", "no"});
  }

  FrameworkOption integer(const std::string& name, std::string help, std::int64_t Part::*field,
                          std::int64_t least, std::int64_t most) const {
    return custom(name, "N", std::move(help), [=](Arguments& a, Part& p) {
      p.*field = a.integer(name, p.*field, least, most);
    });
  }

  FrameworkOption number(const std::string& name, std::string value, std::string help,
                         double Part::*field, double least, double most) const {
    return custom(name, std::move(value), std::move(help),
                  [=](Arguments& a, Part& p) { p.*field = a.number(name, p.*field, least, most); });
  }

  FrameworkOption names(const std::string& name, std::string value, std::string help,
                        std::vector<std::string> Part::*field) const {
    return custom(name, std::move(value), std::move(help),
                  [=](Arguments& a, Part& p) { p.*field = a.list(name); });
  }

  template <typename Enum, std::size_t N>
  FrameworkOption choice(const std::string& name, std::string value, std::string help,
                         const EnumName<Enum> (&names)[N], Enum Part::*field) const {
    std::vector<std::string> choices;
    for (const EnumName<Enum>& n : names) choices.emplace_back(n.name);
    return custom(
        name, std::move(value), std::move(help),
        [name, field, &names](Arguments& a, Part& p) {
          for (const EnumName<Enum>& n : names)
            if (n.name == a.text(name)) p.*field = n.value;
        },
        std::move(choices));
  }

  FrameworkOption custom(std::string name, std::string value, std::string help, Custom read,
                         std::vector<std::string> choices = {}) const {
    return {{std::move(name), std::move(value), std::move(help), std::move(choices), true},
            frameworks_,
            [part = part_, read = std::move(read)](Arguments& a, ParallelConfig& c) {
              read(a, c.*part);
            }};
  }

 private:
  Part ParallelConfig::*part_;
  std::vector<FrameworkKind> frameworks_;
};

}  // namespace foreshard::cli
