#pragma once

#include <filesystem>
#include <vector>

#include "conformance/check.h"

namespace foreshard {

/// Kind `zero`: events in order with all their fields, and the tables of parameters, groups and
/// sub-groups.
std::vector<CheckResult> check_zero(const std::filesystem::path& file);

}  // namespace foreshard
