// Emulated durations: nominal chaining, checked by bounds that hold on any machine (never early;
// not later than the tolerance unless an overrun is reported).

#include <gtest/gtest.h>

#include "core/error.h"
#include "exec/emulation.h"
#include "exec/run.h"
#include "tests/exec/program_maker.h"

namespace foreshard {
namespace {

using fixture::ProgramMaker;

/// Per step: rank-dependent work A on stream 0, an all-reduce on stream 1 after it, work B on
/// stream 0 beside the all-reduce, work C on stream 0 after both.
struct Overlap {
  Overlap() : m({"compute", "communication"}) {
    const BufferId a = m.buffer("a", 16), b = m.buffer("b", 16);
    const TensorId at = m.tensor(a, {4}), bt = m.tensor(b, {4});
    m.alloc(a);
    m.alloc(b);
    m.end_init();
    first = m.launch(OpKind::kFill, {}, {at}, {1});
    m.wait_stream(1, 0);
    reduce = m.collective(CollectiveKind::kAllReduce, ReduceOp::kSum, at, at, 1);
    second = m.launch(OpKind::kFill, {}, {bt}, {1});
    m.wait_stream(0, 1);
    third = m.launch(OpKind::kFill, {}, {at}, {1});
    m.end_step();
    m.program().carries = {};
    schedule = m.schedule(2);
    schedule.programs.push_back(schedule.programs[0]);
    schedule.program_of_rank = {0, 1};
  }

  EmulatedTimes times() const {
    EmulatedTimes e;
    for (std::size_t p = 0; p < 2; ++p) {
      std::vector<Time> device(schedule.programs[p].instructions.size());
      device[first] =
          milliseconds(p == 0 ? 2 : 6);  // the slower rank decides when the all-reduce starts
      device[reduce] = milliseconds(5);
      device[second] = milliseconds(3);
      device[third] = milliseconds(4);
      e.device.push_back(device);
    }
    e.tolerance = milliseconds(20);
    return e;
  }
  /// max(6, 2) + max(5, 3) + 4: the all-reduce starts when the slower rank is there and hides the
  /// second fill.
  static constexpr Time kStep = milliseconds(15);

  ProgramMaker m;
  Schedule schedule;
  std::uint32_t first = 0, reduce = 0, second = 0, third = 0;
};

Time last_end(const Trace& t) {
  Time end;
  for (const StepTime& s : t.step_times) end = std::max(end, s.end);
  return end;
}

TEST(Emulation, StepsTakeTheirChainedTime) {
  const Overlap overlap;
  RunOptions o;
  o.steps = 3;
  o.emulate = overlap.times();
  const RunResult result = run(overlap.schedule, o);
  EXPECT_EQ(result.timed_work, 2 * 3 * 4);
  const Time end = last_end(result.trace);
  EXPECT_GE(end, 3 * Overlap::kStep);
  if (result.trace.overruns == 0) {
    EXPECT_TRUE(result.trace.timing_valid);
    EXPECT_LE(end, 3 * Overlap::kStep + o.emulate->tolerance);
  }
}

TEST(Emulation, TimeScaleStretchesTheWallClockOnly) {
  const Overlap overlap;
  RunOptions o;
  o.emulate = overlap.times();
  o.emulate->time_scale = 4;
  const auto start = std::chrono::steady_clock::now();
  const RunResult result = run(overlap.schedule, o);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(60));
  EXPECT_GE(last_end(result.trace), Overlap::kStep);
  if (result.trace.overruns == 0) {
    EXPECT_LE(last_end(result.trace), Overlap::kStep + milliseconds(5));
  }
}

TEST(Emulation, HostTimeCounts) {
  const Overlap overlap;
  RunOptions o;
  o.emulate = overlap.times();
  for (const auto& d : o.emulate->device) o.emulate->host.emplace_back(d.size());
  o.emulate->host[0][overlap.first] =
      milliseconds(10);  // rank 0 issues its first work late: 10 + 2 > 6
  const RunResult result = run(overlap.schedule, o);
  EXPECT_GE(last_end(result.trace), milliseconds(12 + 5 + 4));
}

TEST(Emulation, CollectivesOfOneCommunicatorRunOneAfterTheOther) {
  // Rule N-2: two all-reduces on two streams, issued together, take the sum of their times.
  ProgramMaker m({"compute", "first", "second"});
  const BufferId a = m.buffer("a", 16), b = m.buffer("b", 16);
  const TensorId at = m.tensor(a, {4}), bt = m.tensor(b, {4});
  m.alloc(a);
  m.alloc(b);
  m.launch(OpKind::kFill, {}, {at}, {1});
  m.launch(OpKind::kFill, {}, {bt}, {1});
  m.end_init();
  const std::uint32_t one = m.collective(CollectiveKind::kAllReduce, ReduceOp::kSum, at, at, 1);
  const std::uint32_t two = m.collective(CollectiveKind::kAllReduce, ReduceOp::kSum, bt, bt, 2);
  m.end_step();
  RunOptions o;
  o.emulate.emplace();
  o.emulate->device.emplace_back(m.program().instructions.size());
  o.emulate->device[0][one] = milliseconds(5);
  o.emulate->device[0][two] = milliseconds(4);
  EXPECT_GE(last_end(run(m.schedule(2), o).trace), milliseconds(9));
}

TEST(Emulation, TimesComeFromAPredictedTrace) {
  const Overlap overlap;
  Trace predicted;
  const auto span = [&](std::int32_t rank, Lane lane, std::uint32_t instruction, std::int32_t step,
                        int ms) {
    Span s;
    s.rank = rank;
    s.lane = lane;
    s.instruction = instruction;
    s.step = step;
    s.start = milliseconds(100 * step);
    s.end = s.start + milliseconds(ms);
    predicted.spans.push_back(s);
  };
  span(0, Lane::kStream, overlap.first, 0, 9);  // only the last step counts
  span(0, Lane::kStream, overlap.first, 1, 2);
  span(0, Lane::kHost, overlap.first, 1, 1);
  span(1, Lane::kStream, overlap.reduce, 1, 7);
  const EmulatedTimes times = emulated_times(overlap.schedule, predicted);
  EXPECT_EQ(times.device[0][overlap.first], milliseconds(2));
  EXPECT_EQ(times.host[0][overlap.first], milliseconds(1));
  EXPECT_EQ(times.device[1][overlap.reduce], milliseconds(7));
  EXPECT_EQ(times.device[1][overlap.first], Time(0));
  predicted.spans[0].instruction = 10'000;
  EXPECT_THROW(emulated_times(overlap.schedule, predicted), InputError);
}

TEST(Emulation, RefusesTimesOfAnotherSchedule) {
  const Overlap overlap;
  RunOptions o;
  o.emulate = overlap.times();
  o.emulate->device[1].pop_back();
  EXPECT_THROW(run(overlap.schedule, o), InputError);
}

TEST(Emulation, FailureDuringALongSleepEndsTheRun) {
  const Overlap overlap;
  RunOptions o;
  o.emulate = overlap.times();
  o.emulate->device[0][overlap.first] = seconds(3600);
  o.faults.push_back({Fault::Kind::kDie, 1, 0, overlap.second});
  EXPECT_THROW(run(overlap.schedule, o), RunError);
}

}  // namespace
}  // namespace foreshard
