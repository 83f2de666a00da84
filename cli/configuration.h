#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "study/job.h"

namespace foreshard::cli {

/// The question as a --config file asks it: the model, every option that was given and may stand in
/// such a file, and the usual ones with the values that they had without being given. By name.
std::vector<std::pair<std::string, std::string>> configuration_of(const Arguments& arguments,
                                                                  const Job& job,
                                                                  const CommandSpec& command);

}  // namespace foreshard::cli
