#pragma once

#include "exec/run.h"
#include "schedules/schedule.h"
#include "schedules/trace.h"

namespace foreshard::cli {

/// A run against the same job on one rank: what sharding must not change.
struct Numerics {
  double max_relative_difference = 0;  ///< Of losses and gradient norms.
  /// The value that comes closest to what rounding explains, or goes furthest beyond it.
  double difference = 0, allowed = 0;
  bool within() const { return difference <= allowed; }
};

/// Runs the reference twice: as it is, and with every initial weight moved by up to one rounding
/// unit. Two runs that differ in rounding alone differ in a step by at most
///
///   max(1e-5, u) + sqrt(n) * (largest difference between the two references up to this step)
///
/// u: the rounding unit of the coarsest dtype that either schedule computes or sends in (fp32
/// 2^-24, fp16 2^-11, bf16 2^-8, 8 bits 2^-4 or 2^-3). n: launches of a step; each rounds anew,
/// errors of random sign add up as the root of their number, and each moves the result as a moved
/// weight does. 1e-5: fp32 sums of another order, as in our recordings of real sharded trainings.
Numerics compare_to_reference(const Schedule& sharded, const Trace& found,
                              const Schedule& reference, const RunOptions& options);

}  // namespace foreshard::cli
