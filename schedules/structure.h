#pragma once

// The first thing that is checked of any schedule: every index points into its table, every size is
// possible, every view lies inside its buffer. A schedule without such faults can be walked without
// a bounds check.

#include "core/error.h"
#include "schedules/schedule.h"

namespace foreshard {

inline constexpr std::int64_t kLargestWorld = 1 << 20;  ///< Ranks of one job.
inline constexpr std::int64_t kMostExecutedRanks = 16;  ///< That the executor runs on one machine.
inline constexpr std::int64_t kLargestBuffer = std::int64_t{1}
                                               << 50;  ///< Bytes of one buffer (1 PiB).
/// Problems one answer lists: a file with more is not a schedule.
inline constexpr std::size_t kMostIssues = 20;
inline constexpr int kMostStreams = 32;  ///< Streams of one rank.

/// False for a program that says times and memory only: its launches count operands without naming
/// them, and it cannot be executed (PlanOptions::executable).
inline bool has_tensors(const RankProgram& p) { return !p.tensors.empty(); }

/// Adds an issue for each fault, with the path of the schedule's file form
/// ("programs[0].tensors[7]"). Stops after about kMostIssues.
void check_structure(const Schedule& schedule, IssueList& issues);

}  // namespace foreshard
