#pragma once

// The executor's one door: run a schedule with real tensors on CPU ranks (threads of this process).

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "exec/tensor_view.h"
#include "exec/transport/transport.h"
#include "memory/options.h"
#include "schedules/schedule.h"
#include "schedules/trace.h"

namespace foreshard {

/// How the streams of a rank are run.
enum class StreamMode : std::uint8_t {
  kInline,   ///< Work runs in the rank's host thread as it is issued: one thread per rank, no
             ///< overlap.
  kThreads,  ///< A worker thread per stream: real overlap, real waiting.
};

/// Initial value of element `index` (row-major, of the whole parameter) of `name`.
using Initializer = std::function<double(
    const std::string& name, const std::vector<std::int64_t>& shape, std::int64_t index)>;

/// Which part of the data a batch is.
struct BatchPosition {
  std::int64_t rank = 0, world = 1;
  std::int32_t step = 0, micro_batch = 0;
};
/// Fills `destination` (contiguous) with the rank's rows of one model input.
using DataSource = std::function<void(const ModelInput& input, const BatchPosition& position,
                                      const TensorView& destination)>;

/// Durations to emulate: every instruction takes its time by the wall clock, chained nominally (an
/// end is the nominal end of what it waits for plus its duration), so that late wake-ups do not add
/// up. Instructions are those of Schedule::programs[p]. The executor never reports these numbers as
/// measurements; a run proves order, lifetimes, bytes and numerics, not the durations themselves.
struct EmulatedTimes {
  std::vector<std::vector<Time>> host;  ///< [program][instruction]: host thread time; may be empty.
  std::vector<std::vector<Time>> device;  ///< [program][instruction]: time on the stream; a
                                          ///< collective's from when all arrived.
  double time_scale =
      1;  ///< Wall-clock seconds per emulated second. Raise it where work is too short to emulate.
  Time tolerance = microseconds(
      500);  ///< Wall clock. Work that ends later than this after its deadline is an overrun.
  double overrun_share =
      0.01;  ///< Timing is valid while overruns are at most this share of the timed work.
};

/// A failure to inject, for tests of the failure handling.
struct Fault {
  enum class Kind : std::uint8_t { kDie, kHang };
  Kind kind = Kind::kDie;
  std::int64_t rank = 0;
  std::int32_t step = 0;
  std::uint32_t instruction = 0;
};

struct RunOptions {
  int steps = 0;  ///< Steps to run; 0: the plan's. More than the plan has repeat its last step.
  StreamMode mode = StreamMode::kThreads;
  bool checked =
      true;  ///< Check lifetimes, bounds and stream order of every access (costs host time).
  bool record_spans = true;        ///< Off: the trace has memory and totals only.
  bool gather_parameters = false;  ///< Collect the final parameters by name.
  std::chrono::milliseconds watchdog{
      30'000};  ///< A rank that waits longer for others ends the run.
  TransportFactory transport = make_shared_memory_transport;  ///< Makes the run's one transport.
  Initializer initialize;  ///< Default: small values from a hash of the name and the index.
  DataSource data;  ///< Default: a fixed formula of row, position and step (exec/defaults.cc).
  std::optional<EmulatedTimes> emulate;
  /// How far the device is when a rank's allocator asks, in place of how far the CPU's streams
  /// happen to be: of a trace predicted for this schedule. A rank without an entry takes that of
  /// its program; steps after the last take the last one's.
  std::vector<ReuseAnswers> reuse;
  AllocatorOptions allocator;
  Bytes device_memory{std::int64_t{4} << 30};  ///< Capacity of each rank's device.
  std::vector<Fault> faults;
};

/// A parameter after the run, put together from the ranks' shards.
struct FinalParameter {
  std::vector<std::int64_t> shape;
  std::vector<double> values;
};

struct RunResult {
  Trace trace;  ///< Emulated or of CPU ranks; losses and gradient norms are in it.
  std::map<std::string, FinalParameter> parameters;  ///< If asked for.
  std::int64_t timed_work = 0;  ///< Emulation: pieces of work that had a deadline.
};

/// Runs the schedule on Schedule::world ranks (1 to kMostExecutedRanks). Throws InputError if the
/// options do not fit the schedule and RunError, naming rank and instruction, if a rank fails, is
/// stuck for longer than the watchdog or breaks a rule of memory use. All threads have ended when
/// it returns or throws.
RunResult run(const Schedule& schedule, const RunOptions& options);

/// The initial values and the data used where RunOptions gives none.
double default_initial_value(const std::string& name, const std::vector<std::int64_t>& shape,
                             std::int64_t index);
void default_data(const ModelInput& input, const BatchPosition& position,
                  const TensorView& destination);

}  // namespace foreshard
