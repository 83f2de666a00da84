// The allocator in the simulator: host order, deferred frees, retries, out of memory, owners.

#include <gtest/gtest.h>

#include "sim/simulator.h"
#include "toy.h"

namespace foreshard {
namespace {

using toy::ToyCost;
using toy::ToyProgram;

constexpr std::int64_t kMiB = 1 << 20;

// 20 MiB blocks: each takes its own segment. Peak allocated 40 (two live), reserved 40 (the
// third reuses one).
TEST(Memory, PeaksAndOwners) {
  ToyProgram p;
  const auto a = p.buffer(20 * kMiB, 0, BufferCategory::kShardedParameter);
  const auto b = p.buffer(20 * kMiB, 0, BufferCategory::kActivation);
  const auto c = p.buffer(20 * kMiB, 0, BufferCategory::kActivation);
  p.alloc(a).end_init().alloc(b).free(b).alloc(c).launch(10).free(c);
  ToyCost cost;
  cost.device.context = Bytes(100 * kMiB);
  const SimulationResult r = simulate(toy::schedule_of(p), cost);
  EXPECT_TRUE(r.memory.simulated);
  EXPECT_TRUE(r.memory.fits);
  EXPECT_EQ(r.memory.allocated_peak, Bytes(40 * kMiB));
  EXPECT_EQ(r.memory.reserved_peak, Bytes(40 * kMiB));
  EXPECT_EQ(r.memory.device_peak, Bytes(140 * kMiB));
  ASSERT_EQ(r.memory.owners.size(), 2u);
  EXPECT_EQ(r.memory.owners[0].bytes, Bytes(20 * kMiB));
  EXPECT_EQ(r.memory.owners[0].category, BufferCategory::kShardedParameter);
  EXPECT_EQ(r.memory.owners[1].category, BufferCategory::kActivation);
  EXPECT_EQ(r.memory.peak_at.step, 0);
  EXPECT_EQ(r.memory.peak_at.instruction, 1u);  // the first alloc of the step
}

// Memory freed in one stream's pool does not serve another's: reserved 40 although only 20
// are ever live.
TEST(Memory, PoolsOfStreamsAreApart) {
  ToyProgram p;
  const auto a = p.buffer(20 * kMiB, 0), b = p.buffer(20 * kMiB, 1);
  p.alloc(a).free(a).alloc(b).free(b);
  const SimulationResult r = simulate(toy::schedule_of(p), ToyCost{});
  EXPECT_EQ(r.memory.allocated_peak, Bytes(20 * kMiB));
  EXPECT_EQ(r.memory.reserved_peak, Bytes(40 * kMiB));
}

// the block is also used by stream 1, whose kernel runs 100 ns from its issue. Freed at once,
// it is not reusable before that: a host that allocates at 50 needs a second segment, one that
// comes at 150 reuses the first.
TEST(Memory, DeferredFreeDependsOnTheStreamsProgress) {
  for (const bool late : {false, true}) {
    ToyProgram p;
    const auto a = p.buffer(20 * kMiB, 0), b = p.buffer(20 * kMiB, 0);
    p.alloc(a).launch(100, 1).record_stream(a, 1).free(a).host(late ? 150 : 50).alloc(b).free(b);
    const SimulationResult r = simulate(toy::schedule_of(p), ToyCost{});
    EXPECT_EQ(r.memory.reserved_peak, Bytes((late ? 20 : 40) * kMiB)) << late;
    EXPECT_EQ(r.memory.allocated_peak, Bytes(20 * kMiB));
  }
}

// A device of 45 MiB: 20 + 20 cached in two pools, then 40 in pool 0 need the cache back: the
// host waits for the device (kernel of 1000 ns), two segments are freed (2 x 7 ns) and one is taken
// (5 ns). Allocs of the two 20 MiB segments cost 2 x 5 ns before: the kernel is issued at 10, ends
// at 1010; then 2 x 7 + 5 = 19: the kernel of 1 ns ends at 1030.
TEST(Memory, RetryWaitsForTheDeviceAndPaysTheDriver) {
  ToyProgram p;
  const auto a = p.buffer(20 * kMiB, 0), b = p.buffer(20 * kMiB, 1), c = p.buffer(40 * kMiB, 0);
  p.alloc(a).free(a).alloc(b).free(b).launch(1000).alloc(c).launch(1).free(c);
  ToyCost cost;
  cost.device.capacity = Bytes(45 * kMiB);
  cost.host_costs.segment_alloc = nanoseconds(5);
  cost.host_costs.segment_free = nanoseconds(7);
  const SimulationResult r = simulate(toy::schedule_of(p), cost);
  EXPECT_TRUE(r.memory.fits);
  EXPECT_EQ(r.memory.retries, 1);
  EXPECT_EQ(r.step_time, nanoseconds(1030));
  Time allocator(0);
  for (const CriticalPathRow& row : r.critical_path) {
    if (row.resource.kind == CriticalResource::Kind::kAllocator) allocator += row.time;
  }
  EXPECT_EQ(allocator, nanoseconds(29));  // 10 before the long kernel, 19 after it
  EXPECT_EQ(r.breakdown.total(), r.step_time);
}

// The same beside a rank that holds more at once (44 MiB against 40) and asks once: the retries are
// those of the rank that has them.
TEST(Memory, RetriesOfAnotherRankThanTheFullestCount) {
  ToyProgram p, q;
  const auto a = p.buffer(20 * kMiB, 0), b = p.buffer(20 * kMiB, 1), c = p.buffer(40 * kMiB, 0);
  p.alloc(a).free(a).alloc(b).free(b).alloc(c).launch(1).free(c);
  const auto whole = q.buffer(44 * kMiB, 0);
  q.alloc(whole).launch(1).free(whole).end_step();
  ToyCost cost;
  cost.device.capacity = Bytes(45 * kMiB);
  Schedule s = toy::schedule_of(p, 2);
  s.programs.push_back(q.p);
  s.program_of_rank = {0, 1};
  const SimulationResult r = simulate(s, cost);
  EXPECT_EQ(r.memory.rank, 1);
  EXPECT_EQ(r.memory.retries, 1);
  EXPECT_EQ(r.memory.retries_total, 1);
}

// More than the device has: an answer that says what and when, and how much would be needed.
TEST(Memory, OutOfMemoryIsAnAnswer) {
  ToyProgram p;
  const auto a = p.buffer(30 * kMiB, 0, BufferCategory::kShardedParameter),
             b = p.buffer(30 * kMiB, 0);
  p.alloc(a).end_init();
  p.p.marks.push_back({MarkKind::kPhase, true, Phase::kForward, 0, {}, {}, 0});
  p.p.instructions.push_back({InstructionKind::kMark, 0, 0, 0});
  p.launch(10).alloc(b).launch(10).free(b);
  ToyCost cost;
  cost.device.capacity = Bytes(50 * kMiB);
  const SimulationResult r = simulate(toy::schedule_of(p), cost);
  EXPECT_FALSE(r.memory.fits);
  ASSERT_TRUE(r.memory.out_of_memory.has_value());
  EXPECT_EQ(r.memory.out_of_memory->requested, Bytes(30 * kMiB));
  EXPECT_EQ(r.memory.out_of_memory->allocated, Bytes(30 * kMiB));
  EXPECT_EQ(r.memory.out_of_memory->at.phase, Phase::kForward);
  EXPECT_EQ(r.memory.out_of_memory->category, BufferCategory::kActivation);
  EXPECT_EQ(r.memory.allocated_peak, Bytes(60 * kMiB));
  EXPECT_EQ(r.step_time, nanoseconds(20));
  ASSERT_EQ(r.step_memory.size(), 1u);
  EXPECT_TRUE(r.step_memory[0].out_of_memory);
}

// Repeating the last step: the buffer that survives it takes the place of the one it found.
TEST(Memory, CarriesKeepRepeatedStepsLevel) {
  ToyProgram p;
  const auto before = p.buffer(20 * kMiB), now = p.buffer(20 * kMiB);
  p.alloc(before).end_init().alloc(now).launch(1).free(before);
  p.p.carries.push_back({BufferId(before), BufferId(now)});
  SimulationOptions o;
  o.steps = 4;
  const SimulationResult r = simulate(toy::schedule_of(p), ToyCost{}, o);
  ASSERT_EQ(r.step_memory.size(), 4u);
  for (const StepMemory& m : r.step_memory) EXPECT_EQ(m.allocated_peak, Bytes(40 * kMiB));
  EXPECT_EQ(r.memory.reserved_peak, Bytes(40 * kMiB));
}

// Page-locked memory comes in powers of two, pageable memory does not.
TEST(Memory, HostMemoryIsCountedApart) {
  for (const auto& [space, bytes] : {std::pair(MemorySpace::kHostPinned, 32 * kMiB),
                                     std::pair(MemorySpace::kHostPageable, 20 * kMiB)}) {
    ToyProgram p;
    const auto a = p.buffer(20 * kMiB);
    p.p.buffers[a].space = space;
    p.alloc(a).launch(1).free(a);
    const SimulationResult r = simulate(toy::schedule_of(p), ToyCost{});
    EXPECT_EQ(r.memory.allocated_peak, Bytes(0));
    EXPECT_EQ(r.memory.host_peak, Bytes(bytes));
  }
}

TEST(Trace, SpansAndSamples) {
  ToyProgram p;
  const auto a = p.buffer(20 * kMiB);
  p.alloc(a).gather(100).join(0, 1).launch(40, 0, 7).free(a).sync_device();
  SimulationOptions o;
  o.detail = Detail::kTrace;
  const SimulationResult r = simulate(toy::schedule_of(p), ToyCost{}, o);
  ASSERT_TRUE(r.trace.has_value());
  std::vector<Span> device;
  for (const Span& s : r.trace->spans) {
    if (s.lane == Lane::kStream) device.push_back(s);
  }
  ASSERT_EQ(device.size(), 2u);
  EXPECT_EQ(device[0].start, Time(0));
  EXPECT_EQ(device[0].end, nanoseconds(100));
  EXPECT_EQ(device[1].start, nanoseconds(100));
  EXPECT_EQ(device[1].end, nanoseconds(140));
  ASSERT_EQ(r.trace->memory.size(), 2u);
  EXPECT_EQ(r.trace->memory[0].allocated, Bytes(20 * kMiB));
  EXPECT_EQ(r.trace->memory[1].allocated, Bytes(0));
  bool waited = false;  // the host's wait for the device, 7 to 140
  for (const Span& s : r.trace->spans) {
    waited |= s.lane == Lane::kHost && s.start == nanoseconds(7) && s.end == nanoseconds(140);
  }
  EXPECT_TRUE(waited);
}

}  // namespace
}  // namespace foreshard
