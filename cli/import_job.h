#pragma once

#include "cli/command.h"

namespace foreshard::cli {

/// `import deepspeed|accelerate|torchtitan FILE`: the job file of another program as a file of
/// options, with what became of each key.
int import_job(Arguments& arguments);

}  // namespace foreshard::cli
