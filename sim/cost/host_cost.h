#pragma once

// Host thread time of framework calls: dispatch by kind of op, from measurements of PyTorch on the
// reference CPU.
//
// What a launch costs here is the call on plain tensors. What a sharding framework adds around it
// (hooks, its own tensor type) stands in the schedule as HostWork, and so does the dispatch of the
// copies that its hooks make: those launches (KernelClass::kShardingCopies) cost only the driver
// call.

#include "core/units.h"
#include "schedules/schedule.h"
#include "sim/cost/parameters.h"

namespace foreshard {

class HostCostModel {
 public:
  /// `cpu_factor`: time of the node's CPU relative to the reference.
  HostCostModel(const HostParameters& parameters, double cpu_factor)
      : p_(parameters), cpu_factor_(cpu_factor) {}

  Time launch(const Launch& launch) const;
  Time collective() const;
  Time copy() const;

  /// Dispatch in a tight loop on the reference CPU, microseconds, without the driver.
  static double dispatch_us(const Launch& launch);

 private:
  HostParameters p_;
  double cpu_factor_;
};

}  // namespace foreshard
