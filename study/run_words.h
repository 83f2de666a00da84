#pragma once

#include <algorithm>
#include <string_view>

namespace foreshard {

/// Does `text` contain `part`, whatever the case of ASCII letters? Tables spell one thing in many
/// ways.
inline bool contains_any_case(std::string_view text, std::string_view part) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return !std::ranges::search(text, part, [&](char a, char b) { return lower(a) == lower(b); })
              .empty() ||
         part.empty();
}

}  // namespace foreshard
