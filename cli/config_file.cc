#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "cli/foreign/foreign_job.h"
#include "cli/foreign_names.h"
#include "cli/parse.h"
#include "core/json.h"
#include "hwprofiles/yaml_json.h"

namespace foreshard::cli {
namespace {

constexpr std::uintmax_t kLargestConfig = 1 << 20;

std::string location(const std::string& file, const YAML::Mark& mark) {
  return mark.is_null() ? file : fmt::format("{}: line {}", file, mark.line + 1);
}

/// A scalar, or a list of scalars joined by commas.
std::string value_text(const YAML::Node& node, const std::string& where,
                       std::vector<Issue>& issues) {
  if (node.IsScalar()) return node.Scalar();
  if (!node.IsSequence()) {
    issues.push_back({where, "",
                      node.IsMap() ? "a value is wanted here, found a map" : "the value is missing",
                      ""});
    return "";
  }
  std::string out;
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) {
      issues.push_back({where, "", "a list of plain values is wanted here", ""});
      return "";
    }
    out += (out.empty() ? "" : ",") + item.Scalar();
  }
  return out;
}

/// A job file of another program, which somebody gave for one of options.
void refuse_foreign(std::string_view kind, const std::string& file) {
  if (kind.empty()) return;
  const std::string name = kind == "deepspeed"    ? "DeepSpeed"
                           : kind == "accelerate" ? "Accelerate"
                                                  : "torchtitan";
  throw InputError(
      Issue{file, "", fmt::format("this is a job file of {}, not one of options", name),
            fmt::format("foreshard import {} {} -o job.yaml, then --config job.yaml", kind, file)});
}

std::vector<std::string> top_keys(const YAML::Node& root) {
  std::vector<std::string> keys;
  for (const auto& entry : root)
    if (entry.first.IsScalar()) keys.push_back(entry.first.Scalar());
  return keys;
}

/// Adds one "key: value" of the file.
class ConfigReader {
 public:
  ConfigReader(const CommandSpec& command, const std::string& file, Arguments& arguments)
      : file_(file), arguments_(arguments) {
    for (const OptionGroup& g : command.groups)
      for (const OptionSpec& o : g.options)
        if (o.in_config_file) known_.push_back(o.name), choices_[o.name] = o.choices;
    takes_model_ = !command.positionals.empty() && command.positionals[0].name == "MODEL";
    if (takes_model_) known_.push_back("model");
  }

  void read(const YAML::Node& root) {
    if (root.IsNull()) return;
    if (!root.IsMap())
      return issues_.push_back({file_, "", "options are wanted, one \"name: value\" per line", ""});
    refuse_foreign(foreign_job_kind(top_keys(root)), file_);
    for (const auto& entry : root) read_entry(entry.first, entry.second);
  }
  void finish() {
    if (!issues_.empty()) throw InputError(issues_);
  }

 private:
  void read_entry(const YAML::Node& key_node, const YAML::Node& value) {
    const std::string where = location(file_, key_node.Mark());
    if (!key_node.IsScalar())
      return issues_.push_back({where, "", "the name of an option is wanted here", ""});
    const std::string key = key_node.Scalar();
    if (const auto [seen, fresh] = seen_.emplace(key, where); !fresh)
      return issues_.push_back(
          {where, key, "stands here a second time", "first at " + seen->second});
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
      return issues_.push_back({where, key, "no such option", hint_for(key)});
    }
    const std::string text = as_choice(value_text(value, where, issues_), choices_[key]);
    if (key != "model") return arguments_.set(key, {text, where});
    if (arguments_.positionals().empty()) arguments_.add_positional(text);
  }

  std::string hint_for(const std::string& key) const {
    const std::string hint = foreign_option_hint(key, known_);
    if (!hint.empty()) return hint + "; in a file without the dashes";
    const std::string near = nearest_name(key, known_);
    return near.empty() ? "" : "nearest is \"" + near + "\"";
  }

  /// YAML's own booleans where the option says yes or no.
  static std::string as_choice(std::string text, const std::vector<std::string>& choices) {
    if (choices != std::vector<std::string>{"yes", "no"}) return text;
    if (text == "true" || text == "True" || text == "on") return "yes";
    if (text == "false" || text == "False" || text == "off") return "no";
    return text;
  }

  const std::string& file_;
  Arguments& arguments_;
  std::vector<std::string> known_;
  std::map<std::string, std::vector<std::string>> choices_;
  bool takes_model_ = false;
  std::map<std::string, std::string> seen_;
  std::vector<Issue> issues_;
};

}  // namespace

void read_config_file(const CommandSpec& command, const std::string& file, Arguments& arguments) {
  const std::string text = read_text_file(file);
  if (text.size() > kLargestConfig)
    throw InputError(Issue{
        file, "",
        fmt::format("{} bytes; a file of options has at most {}", text.size(), kLargestConfig),
        ""});
  refuse_foreign(foreign_job_kind_of_text(text), file);
  ConfigReader reader(command, file, arguments);
  try {
    check_yaml_text(text, file);
    reader.read(YAML::Load(text));
  } catch (const YAML::Exception& e) {
    throw InputError(Issue{location(file, e.mark), "", "not valid YAML: " + e.msg, ""});
  }
  reader.finish();
}

}  // namespace foreshard::cli
