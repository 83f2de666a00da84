#pragma once

// Two plans side by side, as plain data: what differs in one step of one rank and what that costs.
// Whoever computes it fills this in; the functions below show it.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/json_fwd.h"
#include "core/units.h"

namespace foreshard {

/// One plan and what it was predicted to take.
struct DifferenceSide {
  std::string title;    ///< "FSDP2", "FSDP2, reshard false", "plan.json"
  std::string subject;  ///< Model and machines.
  Time step;
  std::vector<std::pair<std::string, Time>>
      time_parts;     ///< They add up to `step`; same names on both sides.
  Time interference;  ///< Part of the step by which transfers and other kernels slow kernels.
  Bytes device_peak;
  std::vector<std::pair<std::string, Bytes>>
      memory_parts;  ///< They add up to `device_peak`; absent names are zero.
  bool fits = true;
};

/// One thing that differs.
struct DifferenceRow {
  std::string kind;  ///< "collective", "copy", "wait", "buffer", "kernel", "unit"
  std::string what;  ///< "all-gather over 8 ranks, bf16"
  std::int64_t count_a = 0, count_b = 0;
  std::optional<Bytes> bytes_a, bytes_b;
  std::optional<Time> time;     ///< What the step gains (b - a): exposed time.
  std::optional<Bytes> memory;  ///< What the peak gains (b - a).
};

struct PlanDifference {
  DifferenceSide a, b;
  std::vector<DifferenceRow> rows;  ///< By kind, then by what they cost.
  std::vector<std::string> equal;   ///< Kinds without a difference.
  std::vector<std::string> notes;
  std::vector<std::string> not_modelled;
};

/// What changes and why, a sentence each; what it costs in time and memory is in them or in the
/// parts of the sides.
std::vector<std::string> words_of(const PlanDifference& difference);
/// One screen for people: step, memory, words; with `table` also the rows.
std::string text_of(const PlanDifference& difference, bool table = false);
/// {"a", "b": {"title", "subject", "step_time_s", "breakdown", "interference_s",
/// "device_peak_bytes", "memory", "fits"}, "words", "differences":
/// [{"kind", "what", "a", "b": {"count", "bytes"}, "time_s", "memory_bytes"}], "equal", "notes",
/// "not_modelled"}
Json to_json(const PlanDifference& difference);

}  // namespace foreshard
