#include "hwprofiles/yaml_json.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "core/json.h"

namespace foreshard {
namespace {

/// Largest number of values a YAML document may expand to (aliases can multiply).
constexpr std::size_t kMostYamlValues = 1'000'000;

class Converter {
 public:
  explicit Converter(std::string file) : file_(std::move(file)) {}

  Json convert(const YAML::Node& node, int depth) {
    if (depth > kDeepestJson) fail(node, fmt::format("nested deeper than {} levels", kDeepestJson));
    if (++values_ > kMostYamlValues) fail(node, "too many values (aliases multiply?)");
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        return Json(nullptr);
      case YAML::NodeType::Scalar:
        return scalar(node);
      case YAML::NodeType::Sequence: {
        Json list = Json::array();
        for (const auto& item : node) list.push_back(convert(item, depth + 1));
        return list;
      }
      case YAML::NodeType::Map:
        return object(node, depth);
    }
    return {};
  }

 private:
  [[noreturn]] void fail(const YAML::Node& node, std::string message) {
    const auto mark = node.Mark();
    throw InputError({file_, fmt::format("line {}, column {}", mark.line + 1, mark.column + 1),
                      std::move(message), ""});
  }

  Json object(const YAML::Node& node, int depth) {
    Json result = Json::object();
    for (const auto& item : node) {
      if (!item.first.IsScalar()) fail(item.first, "a key must be a plain word");
      const auto& key = item.first.Scalar();
      if (result.contains(key)) fail(item.first, "the key \"" + key + "\" stands here twice");
      result[key] = convert(item.second, depth + 1);
    }
    return result;
  }

  Json scalar(const YAML::Node& node) {
    const auto& text = node.Scalar();
    if (node.Tag() == "!") return Json(text);  // quoted
    if (text.empty() || text == "~" || text == "null") return Json(nullptr);
    if (text == "true" || text == "True") return Json(true);
    if (text == "false" || text == "False") return Json(false);
    const char* end = text.data() + text.size();
    std::int64_t whole = 0;
    if (const auto r = std::from_chars(text.data(), end, whole);
        r.ec == std::errc() && r.ptr == end)
      return Json(whole);
    double number = 0;
    if (const auto r = std::from_chars(text.data(), end, number);
        r.ec == std::errc() && r.ptr == end) {
      if (!std::isfinite(number)) fail(node, "the number " + text + " is not finite");
      return Json(number);
    }
    return Json(text);
  }

  std::string file_;
  std::size_t values_ = 0;
};

/// Rejects text whose nesting would exhaust the stack of the YAML parser itself: flow brackets and
/// the nesting that indentation and "- - -" build are counted line by line, from above.
void check_nesting(std::string_view text, const std::string& file) {
  int flow = 0;
  int dashes = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') ++flow;
    if (c == ']' || c == '}') flow = std::max(0, flow - 1);
    if (c == '-' || c == '?') ++dashes;
    if (c == '\n') dashes = 0;
    if (flow > kDeepestJson || dashes > 4 * kDeepestJson) {
      throw InputError({file, "", fmt::format("nested deeper than {} levels", kDeepestJson), ""});
    }
  }
}

/// Parses and forgets.
class Ignore final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

}  // namespace

void check_yaml_text(std::string_view text, const std::string& file) {
  if (text.find('\0') != std::string_view::npos)
    throw InputError({file, "", "not a text but binary data", "YAML text"});
  check_nesting(text, file);
  std::istringstream stream{std::string(text)};
  YAML::Parser parser(stream);
  Ignore ignore;
  if (parser.HandleNextDocument(ignore) && parser.HandleNextDocument(ignore))
    throw InputError(
        {file, "", "more than one YAML document", "one; remove the \"---\" between them"});
}

Json parse_yaml(std::string_view text, const std::string& file) {
  try {
    check_yaml_text(text, file);
    return Converter(file).convert(YAML::Load(std::string(text)), 0);
  } catch (const YAML::Exception& e) {
    throw InputError(
        {file, fmt::format("line {}, column {}", e.mark.line + 1, e.mark.column + 1), e.msg, ""});
  }
}

Json parse_json_or_yaml(std::string_view text, const std::string& file) {
  const std::string_view name = file;
  return name.ends_with(".yaml") || name.ends_with(".yml") ? parse_yaml(text, file)
                                                           : parse_json(text, file);
}

}  // namespace foreshard
