#pragma once

#include <string>

#include "core/units.h"

namespace foreshard {

/// Numbers for people, always with a unit. Decimal prefixes for rates and times, binary for memory
/// ("58.3 GiB").
std::string format_memory(Bytes b);          ///< "512 B", "31.2 MiB", "58.3 GiB"
std::string format_bytes_decimal(Bytes b);   ///< "1.5 GB" (traffic)
std::string format_time(Time t);             ///< "180 us", "1.93 s"
std::string format_signed_time(Time t);      ///< "+180 us", "-1.93 s", "0"
std::string format_rate(BytesPerSecond r);   ///< "450 GB/s"
std::string format_count(double n);          ///< "70.55 B" style with K, M, B, T
std::string with_thousands(std::int64_t n);  ///< "61,865,984"
/// Of the allocator: "3 allocator retries a step", or "1 allocator retry in earlier steps" where
/// the last step has none.
std::string retries_text(std::int64_t in_last_step, std::int64_t in_all_steps);

}  // namespace foreshard
