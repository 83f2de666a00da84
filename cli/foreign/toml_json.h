#pragma once

#include <string>
#include <string_view>

#include "core/json_fwd.h"

namespace foreshard::cli {

/// Parses a TOML document into Json; dates become text. InputError with line and column for
/// malformed text, numbers that JSON does not have, and nesting deeper than parse_json takes.
Json parse_toml(std::string_view text, const std::string& file);

}  // namespace foreshard::cli
