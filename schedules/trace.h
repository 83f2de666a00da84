#pragma once

// What happened (measured by the executor) or would happen (predicted by the simulator), in one
// form. Times start at the beginning of the first recorded step. docs/formats/trace.md describes
// the file form.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/enum_names.h"
#include "core/units.h"
#include "schedules/schedule.h"

namespace foreshard {

enum class Lane : std::uint8_t { kHost, kStream };

/// One instruction on the lane that executed it. Host spans cover issuing (or waiting); stream
/// spans cover device work.
struct Span {
  std::int32_t rank = 0;
  Lane lane = Lane::kStream;
  StreamIndex stream = 0;
  std::uint32_t instruction = 0;  ///< Index into the rank program.
  std::int32_t step = 0;
  Time start, end;
};

/// Memory of one rank just after one alloc, free or step boundary.
struct MemorySample {
  std::int32_t rank = 0;
  std::uint32_t instruction = 0;
  std::int32_t step = 0;
  Time at;
  Bytes allocated, reserved, active;
};

/// Peaks of one rank and step.
struct StepMemory {
  std::int32_t rank = 0, step = 0;
  Bytes allocated_peak, reserved_peak, active_peak;
  std::int64_t retries = 0;
  bool out_of_memory = false;
};

struct StepTime {
  std::int32_t rank = 0, step = 0;
  Time start, end;
};

/// What an allocator was told when it asked whether a stream is done with memory that was returned
/// under record_stream, in the order of its questions. Which block serves a request, and with it
/// allocated and reserved bytes, depends on these answers.
struct ReuseAnswers {
  std::int32_t rank = 0;
  std::vector<std::vector<bool>> segments;  ///< [0]: initialisation, [k]: step k - 1.
};

/// Whose times they are.
enum class Timing : std::uint8_t {
  kPredicted,  ///< Of the simulator, for the machine of its profile.
  kEmulated,   ///< By the wall clock of a run whose durations were given.
  kCpuRanks,   ///< By the wall clock of a run on CPU ranks: of no other hardware.
};
inline constexpr EnumName<Timing> kTimings[] = {
    {Timing::kPredicted, "simulated"},
    {Timing::kEmulated, "emulated"},
    {Timing::kCpuRanks, "measured"},
};
static_assert(names_each(kTimings));
constexpr std::string_view name_of(Timing t) { return name_in(kTimings, t); }
/// Times of CPU ranks compare with each other, all others among themselves.
constexpr bool comparable(Timing a, Timing b) {
  return (a == Timing::kCpuRanks) == (b == Timing::kCpuRanks);
}

struct Trace {
  Timing timing = Timing::kPredicted;
  std::string model, description;  ///< Copied from the schedule.
  std::int64_t world = 1;
  std::vector<Span> spans;           ///< Ordered by (rank, step, start, lane, stream, instruction).
  std::vector<MemorySample> memory;  ///< In host order of each rank.
  std::vector<StepMemory> step_memory;
  std::vector<ReuseAnswers> reuse;  ///< Simulated only; not in files.
  std::vector<StepTime> step_times;
  std::vector<double> losses;  ///< Mean over ranks, one for each step; empty if simulated.
  std::vector<double> gradient_norms;
  std::int64_t overruns =
      0;  ///< Emulated links only: work that ended after its nominal deadline plus tolerance.
  bool timing_valid = true;  ///< False if overruns exceed the stated bound.
  std::vector<std::string> notes;
};

}  // namespace foreshard
