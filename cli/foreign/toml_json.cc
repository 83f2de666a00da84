#include "cli/foreign/toml_json.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace foreshard::cli {
namespace {

std::string place_of(const toml::source_region& region) {
  return fmt::format("line {}, column {}", region.begin.line, region.begin.column);
}

class Converter {
 public:
  explicit Converter(const std::string& file) : file_(file) {}

  Json table(const toml::table& t, int depth) {
    check_depth(t, depth);
    Json out = Json::object();
    // toml++ sorts keys; files are read in the order of their lines.
    std::vector<std::pair<toml::source_position, std::string_view>> order;
    for (const auto& [key, node] : t) order.emplace_back(key.source().begin, key.str());
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first.line, a.first.column) < std::pair(b.first.line, b.first.column);
    });
    for (const auto& [place, key] : order) out[std::string(key)] = value(*t.get(key), depth);
    return out;
  }

 private:
  Json value(const toml::node& node, int depth) {
    if (const auto* t = node.as_table()) return table(*t, depth + 1);
    if (const auto* a = node.as_array()) {
      check_depth(node, depth);
      Json out = Json::array();
      for (const toml::node& item : *a) out.push_back(value(item, depth + 1));
      return out;
    }
    if (const auto* s = node.as_string()) return s->get();
    if (const auto* i = node.as_integer()) return i->get();
    if (const auto* b = node.as_boolean()) return b->get();
    if (const auto* f = node.as_floating_point()) {
      if (std::isfinite(f->get())) return f->get();
      throw InputError(Issue{file_, place_of(node.source()), "no finite number", ""});
    }
    std::ostringstream date;
    node.visit([&](const auto& n) { date << n; });
    return date.str();
  }

  void check_depth(const toml::node& node, int depth) const {
    if (depth > kDeepestJson)
      throw InputError(Issue{file_, place_of(node.source()),
                             fmt::format("nested deeper than {} levels", kDeepestJson), ""});
  }

  const std::string& file_;
};

}  // namespace

Json parse_toml(std::string_view text, const std::string& file) {
  try {
    return Converter(file).table(toml::parse(text), 0);
  } catch (const toml::parse_error& e) {
    throw InputError(
        Issue{file, place_of(e.source()), fmt::format("not valid TOML: {}", e.description()), ""});
  }
}

}  // namespace foreshard::cli
