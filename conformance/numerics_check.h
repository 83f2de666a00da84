#pragma once

#include <filesystem>
#include <vector>

#include "conformance/check.h"

namespace foreshard {

/// Trains the tiny model of a numeric golden with our own planner and executor, unsharded and at
/// every recorded world size, and compares losses, gradient norms and final parameters. fp32:
/// relative 1e-5 for losses and norms, 1e-4 for parameter sums. bf16: see Bounds in
/// numerics_check.cc.
std::vector<CheckResult> check_numerics(const std::filesystem::path& file);

}  // namespace foreshard
