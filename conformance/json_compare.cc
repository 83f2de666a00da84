#include "conformance/json_compare.h"

#include <algorithm>

#include "core/json.h"

namespace foreshard {
namespace {

std::string short_text(const Json& value) {
  std::string text = value.dump();
  if (text.size() > 160) text = text.substr(0, 157) + "...";
  return text;
}

std::string difference(const std::string& path, const Json& expected, const Json& found) {
  return path + ": expected " + short_text(expected) + ", found " + short_text(found);
}

}  // namespace

std::optional<std::string> first_difference(const Json& expected, const Json& found,
                                            const std::string& path) {
  if (expected.is_object() && found.is_object()) {
    for (const auto& [key, value] : expected.items()) {
      const auto it = found.find(key);
      if (it == found.end())
        return path + "." + key + ": expected " + short_text(value) + ", found nothing";
      if (auto d = first_difference(value, *it, path + "." + key)) return d;
    }
    for (const auto& [key, value] : found.items()) {
      if (!expected.contains(key))
        return path + "." + key + ": expected nothing, found " + short_text(value);
    }
    return std::nullopt;
  }
  if (expected.is_array() && found.is_array()) {
    const std::size_t n = std::min(expected.size(), found.size());
    for (std::size_t i = 0; i < n; ++i) {
      if (auto d = first_difference(expected[i], found[i], path + "[" + std::to_string(i) + "]"))
        return d;
    }
    if (expected.size() > n)
      return path + "[" + std::to_string(n) + "]: expected " + short_text(expected[n]) +
             ", found the end";
    if (found.size() > n)
      return path + "[" + std::to_string(n) + "]: expected the end, found " + short_text(found[n]);
    return std::nullopt;
  }
  if (expected == found) return std::nullopt;
  return difference(path, expected, found);
}

}  // namespace foreshard
