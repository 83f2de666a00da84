#pragma once

// Which numbers an answer rests on, and where they come from.

#include <string>
#include <vector>

#include "hwprofiles/profile.h"
#include "schedules/schedule.h"
#include "sim/cost/parameters.h"

namespace foreshard {

struct UsedNumber {
  std::string quantity;  ///< "gpu.memory_bandwidth", "host.launch_us"
  double value = 0;      ///< In the base unit of `unit`.
  std::string unit;
  std::string source;
  std::string kind;  ///< A name of FactKind: "datasheet", "recalled", "measured", ...
};

/// The facts of the profile that this schedule's cost depends on, then the parameters of the
/// models.
std::vector<UsedNumber> numbers_used(const Schedule& schedule, const Cluster& cluster,
                                     const CostParameters& parameters = {});

}  // namespace foreshard
