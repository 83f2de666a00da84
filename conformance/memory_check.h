#pragma once

#include <filesystem>
#include <vector>

#include "conformance/check.h"

namespace foreshard {

/// Kind `memory`: plans the case, replays its allocations on our allocator in host order, compares
/// peaks of every phase of every step, retries, and where memory runs out.
std::vector<CheckResult> check_memory(const std::filesystem::path& file);

}  // namespace foreshard
