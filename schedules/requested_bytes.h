#pragma once

#include <cstdint>

#include "core/units.h"
#include "schedules/schedule.h"

namespace foreshard {

/// The most bytes of device buffers that are live at once, as asked for, in the initialisation and
/// the first `steps` steps: no allocator gets by with less.
Bytes most_requested(const RankProgram& program, std::int32_t steps);

}  // namespace foreshard
