#pragma once

#include <memory>

#include "core/units.h"
#include "exec/calls.h"

namespace foreshard {

class RunControl;

/// Moves data between the ranks of a run. One object serves all ranks; called from their stream threads at once.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Takes part in one collective; returns when this rank's output is complete and its input may be overwritten.
  /// `ready` is when this rank could start (nominal time); the result is when all members could. Throws RunError if
  /// members disagree about the call or one does not arrive within the watchdog's time.
  virtual Time collective(const CollectiveCall& call, Time ready) = 0;
};

/// Ranks are threads of this process and read each other's buffers. Reductions add in the order of the ranks, so the
/// result does not depend on timing.
std::unique_ptr<Transport> make_shared_memory_transport(RunControl& control);

}  // namespace foreshard
