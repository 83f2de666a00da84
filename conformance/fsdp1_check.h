#pragma once

#include <filesystem>
#include <vector>

#include "conformance/check.h"

namespace foreshard {

/// Kind `fsdp1`: units with their flat parameters, then events in order with all their fields;
/// errors by type.
std::vector<CheckResult> check_fsdp1(const std::filesystem::path& file);

}  // namespace foreshard
