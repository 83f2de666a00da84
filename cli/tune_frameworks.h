#pragma once

#include "cli/command.h"

namespace foreshard::cli {

/// `tune --frameworks all` or a list: one table of the same job under each framework, with the
/// defaults of each.
int tune_frameworks(Arguments& arguments);

}  // namespace foreshard::cli
