#pragma once

#include "cli/command.h"

namespace foreshard::cli {

/// `import topo-m FILE` and `import nccl-topology FILE`: what a node says about itself; with --on
/// and -o as a profile.
int import_topology(Arguments& arguments);

}  // namespace foreshard::cli
