// Stretches of a program that are written again (host/program_copy.h). Expected programs are
// numbered by hand: each table continues where it stood.

#include "schedules/planner/host/program_copy.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "schedules/planner/host/program_builder.h"

namespace foreshard {
namespace {

using K = InstructionKind;

Buffer buffer_of(std::int64_t bytes) {
  Buffer b;
  b.bytes = Bytes(bytes);
  return b;
}

/// A buffer and an event of before, then a stretch.
struct Written {
  ProgramBuilder builder{1};
  BufferId old_buffer = builder.alloc(buffer_of(100));
  EventId old_event = builder.record_event(0);
  ProgramPosition from{builder.program()};

  explicit Written(const std::function<void(Written&)>& stretch) { stretch(*this); }
  bool again(std::size_t left) { return write_again(builder.program(), from, to_, left); }
  void end() { to_ = ProgramPosition(builder.program()); }

 private:
  ProgramPosition to_{builder.program()};
};

std::vector<std::pair<K, std::uint32_t>> instructions_of(const RankProgram& p, std::size_t from) {
  std::vector<std::pair<K, std::uint32_t>> list;
  for (std::size_t i = from; i < p.instructions.size(); ++i)
    list.emplace_back(p.instructions[i].kind, p.instructions[i].id);
  return list;
}

TEST(ProgramCopy, MovesNumbersOfEveryTable) {
  Written w([](Written& s) {
    ProgramBuilder& b = s.builder;
    b.host_work(5, 0);
    const BufferId x = b.alloc(buffer_of(8)), y = b.alloc(buffer_of(16));
    b.launch(1).op = OpKind::kFill;
    b.wait_stream(0, 1);
    Copy copy;
    copy.bytes = Bytes(3);
    b.copy(copy);
    Collective collective;
    collective.bytes = Bytes(7);
    b.collective(collective);
    b.record_stream(s.old_buffer, 1);
    b.sync_stream(0);
    b.mark({});
    b.free(y);
    b.free(x);
    s.end();
  });
  const RankProgram& p = w.builder.program();
  const std::size_t end = p.instructions.size();
  ASSERT_TRUE(w.again(0));
  const std::vector<std::pair<K, std::uint32_t>> expected{
      {K::kHost, 1},         {K::kAlloc, 3},      {K::kAlloc, 4}, {K::kLaunch, 1},
      {K::kRecordEvent, 2},  {K::kWaitEvent, 2},  {K::kCopy, 1},  {K::kCollective, 1},
      {K::kRecordStream, 0}, {K::kSyncStream, 0}, {K::kMark, 1},  {K::kFree, 4},
      {K::kFree, 3}};
  EXPECT_EQ(instructions_of(p, end), expected);
  EXPECT_EQ(p.events, 3u);
  ASSERT_EQ(p.buffers.size(), 5u);
  EXPECT_EQ(p.buffers[3].bytes, Bytes(8));
  EXPECT_EQ(p.buffers[4].bytes, Bytes(16));
  ASSERT_EQ(p.launches.size(), 2u);
  EXPECT_EQ(p.launches[1].op, OpKind::kFill);
  EXPECT_EQ(p.launches[1].stream, 1);
  EXPECT_EQ(p.copies.at(1).bytes, Bytes(3));
  EXPECT_EQ(p.collectives.at(1).bytes, Bytes(7));
  EXPECT_EQ(p.host_work.at(1).reference_ns, 5);
  EXPECT_EQ(p.marks.size(), 2u);
}

/// Nothing is written where the stretch needs what is before it, or leaves other buffers than said.
TEST(ProgramCopy, RefusesWhatIsNotClosed) {
  const auto waits = [](Written& s) { s.builder.wait_event(0, s.old_event); };
  const auto frees = [](Written& s) { s.builder.free(s.old_buffer); };
  const auto leaves = [](Written& s) { s.builder.alloc(buffer_of(1)); };
  const auto alone = [](Written& s) { s.builder.launch(0); };
  struct Case {
    std::function<void(Written&)> stretch;
    std::size_t left;
    bool fits;
  };
  for (const auto& [stretch, left, fits] : std::vector<Case>{{waits, 0, false},
                                                             {frees, 0, false},
                                                             {leaves, 0, false},
                                                             {leaves, 1, true},
                                                             {alone, 1, false},
                                                             {alone, 0, true}}) {
    Written w([&](Written& s) {
      stretch(s);
      s.end();
    });
    const RankProgram& p = w.builder.program();
    const ProgramPosition before(p);
    EXPECT_EQ(w.again(left), fits);
    const std::size_t grown = p.instructions.size() - before.instructions;
    EXPECT_EQ(grown, fits ? 1u : 0u);
    if (fits) continue;
    EXPECT_EQ(p.buffers.size(), before.buffers);
    EXPECT_EQ(p.launches.size(), before.launches);
    EXPECT_EQ(p.events, before.events);
  }
}

}  // namespace
}  // namespace foreshard
