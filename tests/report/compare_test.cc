#include "report/compare.h"

#include <gtest/gtest.h>

#include <sstream>

#include "core/error.h"
#include "core/json.h"
#include "report/memory_curve.h"
#include "tests/schedules/toy_schedule.h"

namespace foreshard {
namespace {

/// A trace of the toy's second step on one rank: the gather from 1 to 3 us, the use from 3 to 4 us.
Trace toy_trace(const fixture::ToyPlaces& at, std::int32_t step) {
  Trace t;
  t.model = "toy \"quoted\"";
  t.world = 4;
  t.spans.push_back({0, Lane::kHost, 0, at.gather, step, Time(0), nanoseconds(500)});
  t.spans.push_back(
      {0, Lane::kStream, 0, at.use, step, microseconds(3), microseconds(4) + picoseconds(7)});
  t.spans.push_back({0, Lane::kStream, 1, at.gather, step, microseconds(1), microseconds(3)});
  t.memory.push_back({0, at.alloc, step, nanoseconds(100), Bytes(1280), Bytes(2048), Bytes(1280)});
  t.memory.push_back(
      {0, at.alloc + 4, step, nanoseconds(200), Bytes(1536), Bytes(2048), Bytes(1536)});
  t.memory.push_back({0, at.free, step, nanoseconds(300), Bytes(512), Bytes(2048), Bytes(512)});
  t.step_memory.push_back({0, step, Bytes(1536), Bytes(2048), Bytes(1536), 0, false});
  t.step_times.push_back({0, step, Time(0), microseconds(5)});
  return t;
}

struct Pair {
  Schedule schedule;
  fixture::ToyPlaces at;
  Pair() { schedule = fixture::toy_schedule(4, &at); }
  TraceDocument document(Trace t) const { return make_trace_document(schedule, std::move(t)); }
};

TEST(TraceFile, ReadsBackWhatItWrites) {
  const Pair p;
  std::ostringstream out;
  write_trace(p.document(toy_trace(p.at, 1)), out);
  const TraceDocument back = parse_trace(out.str(), "t.json");
  ASSERT_EQ(back.trace.spans.size(), 3u);
  EXPECT_EQ(back.trace.spans[1].end, microseconds(4) + picoseconds(7));  // exact to the picosecond
  EXPECT_EQ(back.trace.spans[2].stream, 1);
  EXPECT_EQ(back.trace.memory[1].allocated.value, 1536);
  EXPECT_EQ(back.trace.model, "toy \"quoted\"");
  ASSERT_FALSE(back.programs[0].first_uses.empty());
  EXPECT_EQ(back.programs[0].first_uses.back().gather, p.at.gather);
  EXPECT_EQ(back.programs[0].first_uses.back().launch, p.at.use);
  EXPECT_NE(out.str().find("\"ph\": \"s\""), std::string::npos);
}

TEST(TraceFile, RefusesWhatIsNoTrace) {
  EXPECT_THROW(parse_trace("{}", "t.json"), InputError);
  EXPECT_THROW(parse_trace("{\"traceEvents\": []}", "t.json"), InputError);
  const Pair p;
  std::ostringstream out;
  write_trace(p.document(toy_trace(p.at, 1)), out);
  std::string lie = out.str();
  lie.replace(lie.find("\"i\": "), 6, "\"i\": 99");
  EXPECT_THROW(parse_trace(lie, "t.json"), InputError);
}

TEST(Compare, EqualTraces) {
  const Pair p;
  const Comparison c = compare(p.document(toy_trace(p.at, 1)), p.document(toy_trace(p.at, 1)));
  EXPECT_TRUE(c.order_equal);
  EXPECT_TRUE(c.bytes_equal);
  EXPECT_EQ(c.peak_difference().value, 0);
  EXPECT_DOUBLE_EQ(c.step_ratio(), 1.0);
  EXPECT_TRUE(c.differences.empty());
}

TEST(Compare, TimeAndPeakSortedByContribution) {
  const Pair p;
  Trace measured = toy_trace(p.at, 1);
  measured.spans[1].end += nanoseconds(100);       // use: +0.1 us
  measured.spans[2].end += nanoseconds(700);       // gather: +0.7 us
  measured.step_times[0].end += nanoseconds(500);  // 5 us -> 5.5 us
  measured.step_memory[0].allocated_peak += Bytes(64);
  const Comparison c = compare(p.document(toy_trace(p.at, 1)), p.document(measured));
  EXPECT_TRUE(c.order_equal);
  EXPECT_EQ(c.peak_difference().value, 64);
  EXPECT_DOUBLE_EQ(c.step_ratio(), 1.1);
  ASSERT_EQ(c.differences.size(), 3u);  // the peak, then the larger time first
  EXPECT_EQ(c.differences[1].what, "all-gather layers.0");
  EXPECT_EQ(c.differences[1].contribution, nanoseconds(700));
  EXPECT_EQ(c.differences[2].contribution, nanoseconds(100));
}

// A prediction for a GPU against CPU ranks: the same order, bytes and peak, and no word on times
// even where they happen to be near.
TEST(Compare, TimesOfAnotherMachineAreNotCompared) {
  const Pair p;
  for (const Timing run : {Timing::kPredicted, Timing::kEmulated, Timing::kCpuRanks}) {
    Trace measured = toy_trace(p.at, 1);
    measured.timing = run;
    measured.spans[1].end += nanoseconds(100);
    measured.step_times[0].end += nanoseconds(500);  // 5 us -> 5.5 us
    const Comparison c = compare(p.document(toy_trace(p.at, 1)), p.document(measured));
    const bool compares = run != Timing::kCpuRanks;
    EXPECT_EQ(c.times_compare(), compares);
    EXPECT_TRUE(c.order_equal && c.bytes_equal);
    EXPECT_EQ(c.differences.size(), compares ? 1u : 0u);
    EXPECT_TRUE(to_json(c)["step_time_ratio"].is_number());
    EXPECT_EQ(to_json(c)["times_compare"].get<bool>(), compares);
    EXPECT_EQ(text_of(c).find('%') != std::string::npos, compares) << text_of(c);
    EXPECT_EQ(text_of(c).find("not compared") == std::string::npos, compares) << text_of(c);
    EXPECT_EQ(text_of(c).find("overrun") != std::string::npos, run == Timing::kEmulated);
  }
}

// Each kind of timing is written and read back; a file without one, or with another, is refused.
TEST(TraceFile, SaysWhoseTimesTheyAre) {
  const Pair p;
  for (const EnumName<Timing>& row : kTimings) {
    Trace t = toy_trace(p.at, 1);
    t.timing = row.value;
    std::ostringstream out;
    write_trace(p.document(t), out);
    const std::string key = "\"source\": \"" + std::string(row.name) + "\", ";
    ASSERT_NE(out.str().find(key), std::string::npos);
    EXPECT_EQ(parse_trace(out.str(), "t.json").trace.timing, row.value);
    for (const char* wrong : {"", "\"source\": \"guessed\", "}) {
      std::string text = out.str();
      text.replace(text.find(key), key.size(), wrong);
      EXPECT_THROW(parse_trace(text, "t.json"), InputError) << wrong;
    }
  }
}

TEST(Compare, OrderAndBytesThatDiffer) {
  const Pair p;
  Trace measured = toy_trace(p.at, 1);
  std::swap(measured.memory[0], measured.memory[1]);
  EXPECT_FALSE(compare(p.document(toy_trace(p.at, 1)), p.document(measured)).order_equal);
  Pair larger;
  larger.schedule.programs[0].collectives[0].bytes = Bytes(2048);
  const Comparison c = compare(p.document(toy_trace(p.at, 1)), larger.document(toy_trace(p.at, 1)));
  EXPECT_FALSE(c.bytes_equal);
  EXPECT_TRUE(c.order_equal);
  Trace missing = toy_trace(p.at, 1);
  missing.spans.pop_back();
  EXPECT_FALSE(compare(p.document(toy_trace(p.at, 1)), p.document(missing)).order_equal);
}

// Nothing matches from the first operation on: it is another plan, not a wrong prediction.
TEST(Compare, OtherPlansAreSaidToBe) {
  const Pair p;
  EXPECT_FALSE(
      compare(p.document(toy_trace(p.at, 1)), p.document(toy_trace(p.at, 1))).other_plans());
  Pair other;
  other.schedule.programs[0].collectives[0].kind = CollectiveKind::kReduceScatter;
  other.schedule.programs[0].launches[0].op = OpKind::kFill;
  Trace t = toy_trace(p.at, 1);
  t.memory.clear();
  const Comparison c = compare(p.document(toy_trace(p.at, 1)), other.document(t));
  EXPECT_TRUE(c.other_plans());
  EXPECT_NE(text_of(c).find("not traces of the same plan"), std::string::npos);
}

TEST(MemoryCurve, AddsUpCategories) {
  const Pair p;
  const MemoryCurve c = memory_curve(p.schedule, toy_trace(p.at, 1), 0, 1);
  ASSERT_EQ(c.points.size(), 3u);
  EXPECT_EQ(c.peak, 1u);
  // Shard 256 B, gather output 1,024 B, activation 256 B.
  std::int64_t sum = 0;
  for (const std::int64_t b : c.points[1].bytes) sum += b;
  EXPECT_EQ(sum, 256 + 1024 + 256);
  EXPECT_EQ(c.categories[0], "all-gather outputs");
  EXPECT_EQ(c.points[2].bytes[0], 0);
}

}  // namespace
}  // namespace foreshard
