#pragma once

// How much memory a device must have for a job that does not fit.

#include <optional>

#include "core/units.h"
#include "sim/simulator.h"
#include "study/evaluate.h"

namespace foreshard {

/// Memory of the device (as `nvidia-smi` states it) on which the job runs, found by simulating its
/// memory on larger devices than its own; whole tenths of a GiB, within 1 % of the smallest from
/// which on larger ones that were tried (up to a tenth larger) do, too. It is not the peak on an
/// unlimited device: that counts cached segments which the allocator gives back when it must.
/// Absent if the device is large enough.
std::optional<Bytes> needed_memory(const Job& job, const Evaluation& evaluation);
/// The same with the simulator of its schedule; `memory` is what that found on the job's device.
std::optional<Bytes> needed_memory(const Job& job, const Simulator& simulator,
                                   const MemoryResult& memory);

}  // namespace foreshard
