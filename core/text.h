#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace foreshard {

/// Does `text` contain `part`?
inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// ASCII letters in lower case.
std::string lower_case(std::string_view text);

/// The pieces between separators, empty ones too: "a,,b" has three, "" one.
std::vector<std::string> parts_of(std::string_view text, char separator);

/// Insertions, deletions and replacements that make one text of the other (Levenshtein).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// As options take it.
constexpr const char* yes_no(bool on) { return on ? "yes" : "no"; }

}  // namespace foreshard
