#include "schedules/validate.h"

#include <gtest/gtest.h>

#include "schedules/structure.h"
#include "tests/schedules/toy_schedule.h"

namespace foreshard {
namespace {

using fixture::move_instruction;
using fixture::toy_schedule;
using fixture::ToyPlaces;

/// The faults of a schedule, without repeats, in order.
std::vector<ScheduleFault> faults_of(const Schedule& s) {
  std::vector<ScheduleFault> out;
  for (const ScheduleFinding& f : validate(s))
    if (std::find(out.begin(), out.end(), f.fault) == out.end()) out.push_back(f.fault);
  return out;
}

bool has_fault(const Schedule& s, ScheduleFault fault) {
  const auto all = faults_of(s);
  return std::find(all.begin(), all.end(), fault) != all.end();
}

TEST(Validate, AcceptsACorrectSchedule) {
  const Schedule s = toy_schedule();
  for (const ScheduleFinding& f : validate(s)) ADD_FAILURE() << text_of(s, f);
}

TEST(Validate, GatherMovedAfterItsUse) {
  ToyPlaces at;
  Schedule s = toy_schedule(4, &at);
  move_instruction(s.programs[0], at.gather, at.use);
  const auto findings = validate(s);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].fault, ScheduleFault::kUseBeforeGather);
  ASSERT_EQ(findings[0].places.size(), 1u);
  EXPECT_EQ(findings[0].places[0].instruction, at.use - 1);
  EXPECT_NE(text_of(s, findings[0]).find("copy layers.0"), std::string::npos)
      << text_of(s, findings[0]);
}

TEST(Validate, WaitForTheGatherLeftOut) {
  ToyPlaces at;
  Schedule s = toy_schedule(4, &at);
  s.programs[0].instructions[at.wait].kind =
      InstructionKind::kSyncStream;  // of the compute stream: orders nothing
  s.programs[0].instructions[at.wait].stream = 0;
  EXPECT_TRUE(has_fault(s, ScheduleFault::kUseBeforeGather));
}

TEST(Validate, HostSyncOrdersStreamsToo) {
  ToyPlaces at;
  Schedule s = toy_schedule(4, &at);
  s.programs[0].instructions[at.wait] = {InstructionKind::kSyncEvent, 0, 0, 0};
  EXPECT_TRUE(validate(s).empty());
}

TEST(Validate, FreeTooEarly) {
  ToyPlaces at;
  Schedule s = toy_schedule(4, &at);
  move_instruction(s.programs[0], at.free, at.use);
  EXPECT_EQ(faults_of(s), std::vector<ScheduleFault>{ScheduleFault::kUseAfterFree});
}

TEST(Validate, DoubleFreeAndDoubleAlloc) {
  ToyPlaces at;
  Schedule s = toy_schedule(4, &at);
  s.programs[0].instructions[at.wait - 1] = {InstructionKind::kAlloc, 0, 0, 1};
  EXPECT_TRUE(has_fault(s, ScheduleFault::kDoubleAlloc));
  s = toy_schedule(4, &at);
  s.programs[0].instructions[at.free + 1].id = 1;
  EXPECT_TRUE(has_fault(s, ScheduleFault::kDoubleFree));
  EXPECT_TRUE(has_fault(s, ScheduleFault::kLeak));  // the activation stays
}

TEST(Validate, LeakInTheRepeatedStep) {
  ToyPlaces at;
  Schedule s = toy_schedule(4, &at);
  s.programs[0].instructions[at.free] = {InstructionKind::kSyncDevice, 0, 0, 0};
  EXPECT_EQ(faults_of(s), std::vector<ScheduleFault>{ScheduleFault::kLeak});
  s.programs[0].carries.push_back({BufferId(1), BufferId(1)});
  EXPECT_TRUE(faults_of(s).empty()) << "a carried buffer is no leak";
}

TEST(Validate, EventNeverRecorded) {
  Schedule s = toy_schedule();
  s.programs[0].events = 3;
  for (Instruction& i : s.programs[0].instructions)
    if (i.kind == InstructionKind::kWaitEvent && i.id == 1) i.id = 2;
  EXPECT_TRUE(has_fault(s, ScheduleFault::kEventNotRecorded));
}

TEST(Validate, WaitBeforeRecordNamesBoth) {
  ToyPlaces at;
  Schedule s = toy_schedule(4, &at);
  RankProgram& p = s.programs[0];
  p.steps.clear();
  p.instructions.erase(p.instructions.begin() + 2, p.instructions.begin() + 12);  // first step
  std::swap(p.instructions[at.record - 10], p.instructions[at.wait - 10]);
  const auto findings = validate(s);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].fault, ScheduleFault::kEventNotRecorded);
  EXPECT_EQ(findings[0].places.size(), 2u);
}

/// Two classes of ranks: even ranks run program 0, odd ranks program 1.
Schedule two_classes() {
  Schedule s = toy_schedule(4);
  s.programs.push_back(s.programs[0]);
  s.program_of_rank = {0, 1, 0, 1};
  return s;
}

// What a collective says of itself is what its tensors hold: bytes, dtype, and one part a rank.
TEST(Structure, CollectivesMoveWhatTheirTensorsHold) {
  const auto issues_with = [](auto change) {
    Schedule s = toy_schedule(4);
    change(s.programs[0].collectives[0]);
    IssueList issues("plan.json");
    check_structure(s, issues);
    return issues.issues().size();
  };
  EXPECT_EQ(issues_with([](Collective&) {}), 0u);
  EXPECT_EQ(issues_with([](Collective& c) { c.bytes = Bytes(c.bytes.value / 2); }), 1u);
  EXPECT_EQ(issues_with([](Collective& c) { c.bytes = Bytes(0); }), 1u);
  EXPECT_EQ(issues_with([](Collective& c) { c.dtype = DType::kBFloat16; }), 1u);
  EXPECT_EQ(issues_with([](Collective& c) { c.kind = CollectiveKind::kAllReduce; }), 1u);
}

TEST(Validate, CollectiveOrderBetweenRanks) {
  Schedule s = two_classes();
  EXPECT_TRUE(validate(s).empty());
  s.programs[1].collectives.push_back(s.programs[1].collectives[0]);
  Collective& other = s.programs[1].collectives[1];
  other.kind = CollectiveKind::kReduceScatter;
  std::swap(other.input, other.output);
  for (Instruction& i : s.programs[1].instructions)
    if (i.kind == InstructionKind::kCollective) i.id = 1;
  const auto findings = validate(s);
  const auto found = std::find_if(findings.begin(), findings.end(), [](const auto& f) {
    return f.fault == ScheduleFault::kCollectiveOrder;
  });
  ASSERT_NE(found, findings.end());
  ASSERT_EQ(found->places.size(), 2u);
  EXPECT_NE(found->places[0].program, found->places[1].program);
}

TEST(Validate, CrossedGroupsDeadlock) {
  // Two groups of the same ranks; class 0 issues A then B, class 1 B then A, on one stream each.
  Schedule s = two_classes();
  s.groups.push_back({"second", 4, 1});
  for (RankProgram& p : s.programs) {
    p.collectives.push_back(p.collectives[0]);
    p.collectives[1].group = GroupId(1);
    for (std::size_t i = 0; i + 1 < p.instructions.size(); ++i) {
      if (p.instructions[i].kind != InstructionKind::kCollective || p.instructions[i].id != 0)
        continue;
      p.instructions.insert(p.instructions.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                            {InstructionKind::kCollective, 0, 0, 1});
      ++i;
    }
    p.steps.clear();
  }
  EXPECT_TRUE(validate(s).empty());
  for (Instruction& i : s.programs[1].instructions)
    if (i.kind == InstructionKind::kCollective) i.id = 1 - i.id;
  EXPECT_EQ(faults_of(s), std::vector<ScheduleFault>{ScheduleFault::kDeadlock});
}

TEST(Validate, MissingCollectiveDeadlocks) {
  Schedule s = two_classes();
  for (Instruction& i : s.programs[1].instructions)
    if (i.kind == InstructionKind::kCollective) i = {InstructionKind::kSyncDevice, 0, 0, 0};
  EXPECT_TRUE(has_fault(s, ScheduleFault::kDeadlock));
  EXPECT_TRUE(has_fault(s, ScheduleFault::kCollectiveOrder));
}

TEST(Validate, IndexOutsideItsTable) {
  Schedule s = toy_schedule();
  s.programs[0].instructions[3].id = 77;
  EXPECT_EQ(faults_of(s), std::vector<ScheduleFault>{ScheduleFault::kStructure});
}

TEST(Validate, UnorderedWriteOfTwoStreams) {
  ToyPlaces at;
  Schedule s = toy_schedule(4, &at);
  RankProgram& p = s.programs[0];
  // The gather no longer waits for compute, which initialised the shard in the first step.
  for (std::uint32_t i = 0; i < at.alloc; ++i)
    if (p.instructions[i].kind == InstructionKind::kWaitEvent && p.instructions[i].id == 1)
      p.instructions[i] = {InstructionKind::kSyncStream, 1, 0, 0};
  EXPECT_TRUE(has_fault(s, ScheduleFault::kUnordered));
}

// The gather's memory is of compute's pool and goes back while the gather runs; the activation,
// claimed next, may get it. (The toy's use reads the shard instead, so that nothing else waits.)
TEST(Validate, MemoryReturnedWhileAnotherStreamUsesIt) {
  const auto returned_early = [](Instruction between) {
    ToyPlaces at;
    Schedule s = toy_schedule(4, &at);
    RankProgram& p = s.programs[0];
    const std::uint32_t whole = p.instructions[at.alloc].id;
    p.buffers[whole].pool = 0;
    p.operands[p.launches[p.instructions[at.use].id].first_operand] = p.collectives[0].input;
    if (between.kind == InstructionKind::kRecordStream) between.id = whole;
    p.instructions[at.wait] = between;
    move_instruction(p, at.free, at.wait + 1);
    return s;
  };
  using K = InstructionKind;
  EXPECT_EQ(faults_of(returned_early({K::kSyncStream, 0, 0, 0})),
            std::vector<ScheduleFault>{ScheduleFault::kUnordered});
  EXPECT_TRUE(validate(returned_early({K::kWaitEvent, 0, 0, 0})).empty());
  EXPECT_TRUE(validate(returned_early({K::kSyncStream, 1, 0, 0})).empty());
  EXPECT_TRUE(validate(returned_early({K::kRecordStream, 1, 0, 0})).empty());
}

}  // namespace
}  // namespace foreshard
