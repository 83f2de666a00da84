#pragma once

#include <optional>
#include <string>

#include "core/json_fwd.h"

namespace foreshard {

/// The first place where two JSON values differ, as "PATH: expected A, found B"; nothing if they
/// are equal. The order of object keys does not matter, 2 equals 2.0.
std::optional<std::string> first_difference(const Json& expected, const Json& found,
                                            const std::string& path);

}  // namespace foreshard
