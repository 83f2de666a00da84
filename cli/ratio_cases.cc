#include "cli/ratio_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cli/job_options.h"
#include "cli/output.h"
#include "core/json.h"
#include "hwprofiles/yaml_json.h"

namespace foreshard::cli {
namespace {

constexpr std::string_view kMeasure = "measure", kModel = "model";

std::vector<OptionSpec> side_options() {
  std::vector<OptionSpec> out;
  for (const OptionGroup& g : job_options()) {
    for (const OptionSpec& o : g.options) {
      if (o.in_config_file) out.push_back(o);
    }
  }
  return out;
}

std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return value.dump();
}

/// One file of a series.
class SeriesReader {
 public:
  SeriesReader(const std::filesystem::path& file, std::vector<RatioCase>& out,
               std::set<std::string>& ids, std::vector<Issue>& problems)
      : file_(file.string()),
        folder_(file.parent_path()),
        out_(out),
        ids_(ids),
        problems_(problems),
        options_(side_options()) {}

  void read() {
    const Json json = parse_json_or_yaml(read_text_file(file_), file_);
    IssueList issues(file_);
    ObjectReader top(json, "", issues);
    series_ = top.required_string("series");
    source_ = top.required_string("source");
    const Json* given = top.get("given");
    const Json* cases = top.get("cases");
    if (cases == nullptr || !cases->is_array())
      top.report("cases", "is missing", "a list of pairs");
    top.finish();
    if (cases != nullptr && cases->is_array()) {
      for (std::size_t i = 0; i < cases->size(); ++i) {
        read_case((*cases)[i], given, fmt::format("cases[{}]", i), issues);
      }
    }
    problems_.insert(problems_.end(), issues.issues().begin(), issues.issues().end());
  }

 private:
  void read_case(const Json& json, const Json* given, const std::string& path, IssueList& issues) {
    ObjectReader in(json, path, issues);
    RatioCase c;
    c.series = series_;
    c.source = source_;
    c.id = in.required_string("id");
    c.what = in.required_string("what");
    const std::string stated =
        in.choice("stated", "complete", {"complete", "no link rate", "partial"});
    c.completeness = stated == "complete"  ? Completeness::kComplete
                     : stated == "partial" ? Completeness::kPartial
                                           : Completeness::kNoLinkRate;
    c.ratio = in.number("ratio", 0, 1e-6, 1e6);
    if (c.ratio <= 0) in.report("ratio", "is missing", "measured value of side a over side b");
    c.assumed = in.string_list("assumed").value_or(std::vector<std::string>{});
    c.explained = in.string("explained", "");
    c.refusal = in.string("not_expressed", "");
    const Json* both = in.get("both");
    const Json* a = in.get("a");
    const Json* b = in.get("b");
    in.finish();
    if (!c.id.empty() && !ids_.insert(c.id).second)
      in.report("id", "\"" + c.id + "\" stands here twice");
    if (c.refusal.empty()) {
      read_side({given, both, a}, path + ".a", c, c.a, issues);
      read_side({given, both, b}, path + ".b", c, c.b, issues);
    }
    out_.push_back(std::move(c));
  }

  /// Options of the series, of the pair and of the side; later ones win.
  void read_side(std::initializer_list<const Json*> layers, const std::string& path, RatioCase& c,
                 RatioSide& side, IssueList& issues) {
    Json merged = Json::object();
    for (const Json* layer : layers) {
      if (layer == nullptr) continue;
      if (!layer->is_object()) {
        issues.add(path, "options are wanted here, found " + describe_json(*layer));
        return;
      }
      for (const auto& [key, value] : layer->items()) merged[key] = value;
    }
    Arguments arguments;
    for (const auto& [key, value] : merged.items()) set(key, value, path, arguments, side, issues);
    if (arguments.positionals().empty())
      issues.add(path, "no model", "model: NAME or a file beside this one");
    if (!issues.empty()) return;
    side.job = read_job(arguments);
    try {
      arguments.check();
    } catch (const InputError& error) {
      c.refusal =
          fmt::format("{}: {}", path.substr(path.rfind('.') + 1), error.issues().front().text());
    }
  }

  void set(const std::string& key, const Json& value, const std::string& path, Arguments& arguments,
           RatioSide& side, IssueList& issues) {
    const std::string text = text_of(value), where = file_ + ": " + path;
    if (key == kModel) return arguments.add_positional(beside(text));
    if (key == kMeasure) return set_measure(text, path, side, issues);
    const auto known = std::find_if(options_.begin(), options_.end(),
                                    [&](const OptionSpec& o) { return o.name == key; });
    if (known == options_.end()) {
      std::vector<std::string> names{std::string(kModel), std::string(kMeasure)};
      for (const OptionSpec& o : options_) names.push_back(o.name);
      const std::string near = nearest_name(key, names);
      return issues.add(path + "." + key, "no such option",
                        near.empty() ? "" : "nearest is \"" + near + "\"");
    }
    if (!known->choices.empty() &&
        std::find(known->choices.begin(), known->choices.end(), text) == known->choices.end())
      return issues.add(path + "." + key, "found \"" + text + "\"",
                        fmt::format("allowed: {}", fmt::join(known->choices, ", ")));
    arguments.set(key, {key == "on" ? beside(text) : text, where});
  }

  void set_measure(const std::string& text, const std::string& path, RatioSide& side,
                   IssueList& issues) const {
    for (const RatioMeasure m :
         {RatioMeasure::kTokensPerGpu, RatioMeasure::kTokens, RatioMeasure::kStepTime,
          RatioMeasure::kForwardRate, RatioMeasure::kForwardTime, RatioMeasure::kBackwardTime,
          RatioMeasure::kPeakMemory}) {
      if (name_of(m) != text) continue;
      side.measure = m;
      return;
    }
    issues.add(path + ".measure", "found \"" + text + "\"",
               "allowed: tokens/s per GPU, tokens/s, step time, forward passes/s, forward time, "
               "backward time, peak memory");
  }

  /// A file of that name in the folder of the series, or the name as it is.
  std::string beside(const std::string& name) const {
    std::error_code ignored;
    const std::filesystem::path path = folder_ / name;
    return std::filesystem::is_regular_file(path, ignored) ? path.string() : name;
  }

  std::string file_;
  std::filesystem::path folder_;
  std::vector<RatioCase>& out_;
  std::set<std::string>& ids_;
  std::vector<Issue>& problems_;
  std::vector<OptionSpec> options_;
  std::string series_, source_;
};

std::vector<std::filesystem::path> files_of(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return {path};
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string extension = entry.path().extension().string();
    if (entry.is_regular_file() && (extension == ".yaml" || extension == ".yml"))
      out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  if (out.empty())
    throw InputError(
        Issue{path.string(), "", "holds no series of ratios", "files that end in .yaml"});
  return out;
}

}  // namespace

std::vector<RatioCase> read_ratio_cases(const std::filesystem::path& file_or_folder) {
  std::vector<RatioCase> out;
  std::set<std::string> ids;
  std::vector<Issue> problems;
  for (const auto& file : files_of(file_or_folder)) {
    try {
      SeriesReader(file, out, ids, problems).read();
    } catch (const InputError& error) {
      problems.insert(problems.end(), error.issues().begin(), error.issues().end());
    }
  }
  if (!problems.empty()) throw InputError(problems);
  return out;
}

int print_scores(Arguments& a, const std::function<std::string(const RatioScores&)>& text,
                 const std::function<Json(const RatioScores&)>& document) {
  a.check();
  const std::vector<RatioCase> cases = read_ratio_cases(a.positional(0));
  const RatioScores scores = score_ratios(cases);
  if (a.flag("json"))
    print_json(document(scores));
  else
    print(text(scores));
  return kOk;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace foreshard::cli
