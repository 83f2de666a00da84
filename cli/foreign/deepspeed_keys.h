#pragma once

#include <map>
#include <span>
#include <string>

#include "cli/foreign/key_table.h"

namespace foreshard::cli::deepspeed {

/// Every key that DeepSpeed 0.19.8 reads from its file, and those of earlier releases that it
/// refuses by name (deepspeed/runtime/config.py and the models that it fills).
std::span<const KeyRow> key_table();
/// Keys that it takes for others: fields by their own name beside their alias, old sections.
const std::map<std::string, std::string>& other_names();

}  // namespace foreshard::cli::deepspeed
