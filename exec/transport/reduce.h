#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "schedules/schedule.h"

namespace foreshard {

/// out[i] = reduction of sources[0][i], sources[1][i], ... in that order, for `count` elements of
/// `dtype`. bf16 and fp16 add in fp32 and round once; fp32 adds in fp32; integers wrap. kAverage
/// divides the sum by the number of sources (integers truncate), kPreMulSum multiplies each source
/// by `factor` first. `out` may be one of the sources. Throws RunError for a dtype that has no
/// arithmetic here.
void reduce_elements(DType dtype, ReduceOp op, double factor,
                     std::span<const std::byte* const> sources, std::int64_t count, std::byte* out);

}  // namespace foreshard
