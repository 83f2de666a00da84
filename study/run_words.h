#pragma once

#include <algorithm>
#include <string_view>

namespace foreshard {

/// Does `text` contain `part`, whatever the case of ASCII letters? Tables spell one thing in many
/// ways.
inline bool contains_any_case(std::string_view text, std::string_view part) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const auto same = [&](char a, char b) { return lower(a) == lower(b); };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), same) != text.end() ||
         part.empty();
}

}  // namespace foreshard
