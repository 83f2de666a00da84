#pragma once

#include <string>

#include "cli/command.h"
#include "sim/cost/collective_table.h"

namespace foreshard::cli {

/// The nccl-tests log `file`, of the test that --collective names where it is given. Throws all
/// problems of the command with those of the file.
CollectiveTable read_nccl_log(Arguments& a, const std::string& file);

}  // namespace foreshard::cli
