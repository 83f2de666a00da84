#pragma once

// Runs one statement of a forward program.

#include <span>

#include "models/module_tree.h"
#include "schedules/planner/host/host.h"

namespace foreshard {

void run_function(Host& host, const Module& module, const Statement& s, std::span<SymTensor> in,
                  std::span<SymTensor> out);

}  // namespace foreshard
