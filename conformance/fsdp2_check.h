#pragma once

#include <filesystem>
#include <vector>

#include "conformance/check.h"

namespace foreshard {

/// Kind `fsdp2`: events in order with all their fields, the units table, buffers, errors by stage
/// and type.
std::vector<CheckResult> check_fsdp2(const std::filesystem::path& file);

}  // namespace foreshard
