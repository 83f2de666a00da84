#pragma once

#include <filesystem>
#include <vector>

#include "conformance/check.h"

namespace foreshard {

/// Kind `ddp`: events in order with all their fields, the reducer's parameters, buckets of every
/// backward and statistics; of an error its type.
std::vector<CheckResult> check_ddp(const std::filesystem::path& file);

}  // namespace foreshard
