#pragma once

#include "schedules/schedule.h"

namespace foreshard {

/// Fills `carries` for repeating the last step: a buffer that lives over the end of a step (a
/// gradient that goes in the next forward, for example) is another one in each step, so what the
/// last step leaves takes the place of its like, which it found and returned. Pairs of the
/// framework's own are kept.
void find_carries(RankProgram& program);

}  // namespace foreshard
