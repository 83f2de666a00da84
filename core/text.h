#pragma once

#include <string_view>

namespace foreshard {

/// Does `text` contain `part`?
inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace foreshard
