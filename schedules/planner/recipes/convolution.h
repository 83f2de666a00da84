#pragma once

#include "schedules/planner/recipes/recipe.h"

namespace foreshard {

/// x [n, c, h, w], weight [o, c, r, s], bias [o] or null -> [n, o, oh, ow]. Saves input and weight. cuDNN's workspace, which
/// depends on the algorithm it picks, is not modelled.
SymTensor conv2d(Host& h, const SymTensor& x, const SymTensor& weight, const SymTensor& bias, std::int64_t stride,
                 std::int64_t padding);

}  // namespace foreshard
