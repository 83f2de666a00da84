#pragma once

#include <string_view>

namespace foreshard {

/// The page around the data: everything before, and everything after the JSON text of `const DATA =
/// ...`.
extern const std::string_view kHtmlBefore, kHtmlAfter;

}  // namespace foreshard
