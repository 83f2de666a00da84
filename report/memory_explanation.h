#pragma once

// The answer to "why is the memory peak what it is", as plain data: the instant, the live set, what
// would lower it.

#include <cstdint>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "core/units.h"
#include "report/answer.h"

namespace foreshard {

/// Highest memory within a phase; step -1 is the initialisation.
struct AnswerPhase {
  std::int32_t step = -1;
  std::string phase;
  Bytes allocated, reserved;
};

/// A change of one option with the peaks it leads to, found by computing it.
struct AnswerMemoryChange {
  std::string change, kind;
  Bytes allocated, reserved, device, device_change;
  Time step_time;
  double speed = 1;  ///< Tokens per second against the job as asked.
  bool fits = true;
  std::string peak_at;
};

/// Memory while a checkpoint is saved or loaded in one way.
struct AnswerCheckpoint {
  std::string phase, way;     ///< "save" or "load".
  Bytes allocated, reserved;  ///< Device peaks.
  Bytes host, host_node;      ///< Of the rank and of the node that need most.
  bool fits = true, host_fits = true;
};

struct MemoryExplanation {
  std::string title;      ///< Model, framework, machines, precision in one line.
  AnswerMemory memory;    ///< Owners by block or unit.
  std::int64_t rank = 0;  ///< The rank that needs most.
  std::int32_t step = 0;  ///< Of the peak.
  Time step_time;
  std::vector<AnswerPhase> phases;
  std::vector<AnswerMemoryChange> changes;  ///< Largest gain first.
  std::vector<AnswerCheckpoint> checkpoints;
};

/// One screen for people.
std::string text_of(const MemoryExplanation& explanation, const TextStyle& style);
Json to_json(const MemoryExplanation& explanation);

}  // namespace foreshard
