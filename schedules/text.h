#pragma once

// A schedule as text for people.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "schedules/schedule.h"

namespace foreshard {

/// "buffer 12 (all-gather output, layers.0, 1.0 MiB)".
std::string describe_buffer(const RankProgram& p, BufferId b);
/// One instruction on one line, without its number: "all_gather  all-gather layers.0 436.2 MB over
/// shard(8)".
std::string describe_instruction(const RankProgram& p, const std::vector<Group>& groups,
                                 const Instruction& i);
/// What device work an instruction is, short: "all-gather layers.0", "matmul layers.0.mlp".
std::string title_of(const RankProgram& p, const Instruction& i);

struct ShowOptions {
  std::uint32_t program = 0;
  std::optional<std::size_t> step;  ///< Absent: the last one.
  bool memory = true;               ///< Show alloc and free.
  bool marks = true;                ///< Indent by module; off: a flat list.
};

/// Head: model, streams, groups, units. Deterministic.
std::string describe_schedule(const Schedule& schedule);
/// The instructions of one step, one per line, indented by phase and module.
std::string describe_step(const Schedule& schedule, const ShowOptions& options = {});

}  // namespace foreshard
