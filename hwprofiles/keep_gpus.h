#pragma once

#include "hwprofiles/profile.h"

namespace foreshard {

/// Keeps the first `gpus` GPUs of each node (at most those it has); NICs shrink in proportion, at
/// least one.
void keep_gpus(HardwareProfile& machine, int gpus);

}  // namespace foreshard
