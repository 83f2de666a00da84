#pragma once

#include <map>
#include <span>
#include <string>

#include "cli/foreign/key_table.h"

namespace foreshard::cli::torchtitan {

/// Every key of torchtitan's job files (torchtitan/config/job_config.py before files became Python,
/// pytorch/torchtitan#2386).
std::span<const KeyRow> key_table();
/// Spellings of earlier versions.
const std::map<std::string, std::string>& other_names();

}  // namespace foreshard::cli::torchtitan
