#pragma once

// Trainable parameters that a step gives no gradient.

#include <string>

#include "schedules/planner/host/host.h"

namespace foreshard {

/// Of a host that ran a step: how many of the trainable parameters no module read whose
/// backward ran, and why where that is known; empty if there are none.
std::string remark_on_untrained(Host& host);

}  // namespace foreshard
