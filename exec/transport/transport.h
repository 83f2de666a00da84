#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "core/units.h"
#include "exec/calls.h"

namespace foreshard {

class RunControl;

/// When all members of a collective were there.
struct CollectiveStart {
  Time nominal;  ///< Not before the communicator's previous collective had ended.
  std::chrono::steady_clock::time_point real;
};

/// Moves data between the ranks of a run. One object serves all ranks; called from their stream
/// threads at once.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Takes part in one collective; returns when this rank's output is complete and its input may be
  /// overwritten. `ready` is when this rank could start (nominal time). Collectives of one
  /// communicator start in the order of their sequence numbers (rule N-2), except sends. Throws
  /// RunError if members disagree about the call or one does not arrive within the watchdog's time.
  virtual CollectiveStart collective(const CollectiveCall& call, Time ready) = 0;
};

/// Ranks are threads of this process and read each other's buffers. Reductions add in the order of
/// the ranks, so the result does not depend on timing.
std::unique_ptr<Transport> make_shared_memory_transport(RunControl& control);

/// How a run gets its transport (RunOptions::transport).
using TransportFactory = std::function<std::unique_ptr<Transport>(RunControl& control)>;

}  // namespace foreshard
