#pragma once

#include <string>

#include "study/job.h"

namespace foreshard::cli {

/// The calls that make the units of `job` in PyTorch, for a model object named `model`: fully_shard
/// calls for FSDP2, the constructor for FSDP1. The framework forms units.
std::string torch_code(const Job& job);

}  // namespace foreshard::cli
