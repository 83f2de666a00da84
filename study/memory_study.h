#pragma once

// Why the memory peak is what it is, and what would lower it: each change is planned and simulated
// anew.

#include <string>
#include <vector>

#include "core/units.h"
#include "sim/options.h"
#include "study/checkpoint_memory.h"
#include "study/evaluate.h"
#include "study/job.h"

namespace foreshard {

/// Highest memory within one phase of one step. Micro-batches count together.
struct PhaseRow {
  std::int32_t step = -1;  ///< -1: initialisation.
  std::string phase;
  Bytes allocated, reserved;
};

struct MemoryChange {
  std::string change;                 ///< As typed: "--checkpoint full".
  std::string kind;                   ///< "checkpointing", "loss", ...
  Bytes allocated, reserved, device;  ///< Peaks with the change.
  Bytes device_change;                ///< Against the job as asked; negative: lower.
  Time step;
  double speed = 1;  ///< Tokens per second against the job as asked.
  bool fits = true;
  std::string peak_at;  ///< Where the peak is then: phase and module.
};

struct MemoryStudy {
  std::vector<PhaseRow> phases;  ///< Initialisation, first and last step, step of the peak.
  std::vector<MemoryChange>
      changes;  ///< Those that lower the device peak first, the largest gain first.
  std::vector<CheckpointRow> checkpoints;  ///< Saving and loading, on the rank of the peak.
};

/// `base` is the job's own evaluation under `options`.
MemoryStudy study_memory(const Job& job, const Evaluation& base,
                         const SimulationOptions& options = {});

/// "backward of layers.31": phase and module (or unit) of a place.
std::string describe_place(const Place& place);

}  // namespace foreshard
