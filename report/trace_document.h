#pragma once

// A trace together with what its instructions are, so that it can be read without its schedule; and
// its file form, which ui.perfetto.dev opens (docs/formats/trace.md).

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "schedules/trace.h"

namespace foreshard {

/// What one instruction does, for readers of a trace.
struct InstructionLabel {
  InstructionKind kind = InstructionKind::kMark;
  std::uint32_t title = 0;  ///< Index into ProgramLabels::titles.
  Bytes bytes;              ///< Claimed, returned or moved; 0 for kernels.
  StreamIndex stream = 0;
};

struct ProgramLabels {
  std::vector<std::string> streams;
  std::vector<std::string> titles;  ///< "all-gather layers.3"; each once.
  std::vector<InstructionLabel> instructions;
  /// A gather and the launch that first uses it.
  struct Use {
    std::uint32_t gather = 0, launch = 0;
  };
  std::vector<Use> first_uses;

  const std::string& title(std::uint32_t instruction) const {
    return titles[instructions[instruction].title];
  }
};

struct TraceDocument {
  Trace trace;
  std::vector<ProgramLabels> programs;
  std::vector<std::uint32_t> program_of_rank;  ///< As in Schedule.

  std::uint32_t program_index(std::int64_t rank) const {
    return program_of_rank.size() == 1 ? program_of_rank[0]
                                       : program_of_rank[static_cast<std::size_t>(rank)];
  }
  const ProgramLabels& labels_for(std::int64_t rank) const { return programs[program_index(rank)]; }
};

/// Labels every instruction of `schedule`; `trace` must be of that schedule.
TraceDocument make_trace_document(const Schedule& schedule, Trace trace);

/// Writes the file form piece by piece: streams as tracks, memory as counters, arrows from each
/// gather to its first use.
void write_trace(const TraceDocument& document, std::ostream& out);
/// The same to a file, at once or not at all. RunError if it cannot be written.
void write_trace_file(const TraceDocument& document, const std::filesystem::path& path);

/// Reads the file form. InputError with every problem, also for traces of other programs.
TraceDocument parse_trace(std::string_view text, const std::string& file);
TraceDocument read_trace_file(const std::filesystem::path& path);

}  // namespace foreshard
