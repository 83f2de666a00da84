#pragma once

#include <string_view>

#include "core/text.h"

namespace foreshard {

/// Does `text` contain `part`, whatever the case of ASCII letters? Tables spell one thing in many
/// ways.
inline bool contains_any_case(std::string_view text, std::string_view part) {
  return contains(lower_case(text), lower_case(part));
}

}  // namespace foreshard
