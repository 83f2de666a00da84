#pragma once

#include <nlohmann/json_fwd.hpp>

namespace foreshard {
/// Keeps the order of keys as written, so that output is stable and readable.
using Json = nlohmann::ordered_json;
}  // namespace foreshard
