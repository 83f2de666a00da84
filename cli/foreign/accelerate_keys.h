#pragma once

#include <map>
#include <span>
#include <string>

#include "cli/foreign/key_table.h"

namespace foreshard::cli::accelerate {

/// Every key of Accelerate 1.15's configuration files (accelerate/commands/config/config_args.py:
/// ClusterConfig) and of their sections (accelerate/commands/launch.py).
std::span<const KeyRow> key_table();
/// Keys of sections without their prefix, which the launcher adds; old spellings.
const std::map<std::string, std::string>& other_names();

}  // namespace foreshard::cli::accelerate
