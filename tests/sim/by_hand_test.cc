// Step times worked out by hand. Compute runs on stream 0, gathers on stream 1, reductions on
// stream 2; all times in nanoseconds; host work is free unless a case gives it a time.

#include <gtest/gtest.h>

#include "sim/simulator.h"
#include "toy.h"

namespace foreshard {
namespace {

using toy::ToyCost;
using toy::ToyProgram;

SimulationResult run(ToyProgram& p, const ToyCost& cost = {}, std::int64_t world = 4,
                     SimulationOptions options = {}) {
  const Schedule s = toy::schedule_of(p, world);
  const SimulationResult r = simulate(s, cost, options);
  EXPECT_EQ(r.breakdown.total(), r.step_time);
  Time path(0);
  for (const CriticalPathSegment& segment : r.critical_segments)
    path += segment.end - segment.start;
  EXPECT_EQ(path, r.step_time);
  return r;
}

// One unit: gather 100, then forward 40, backward 80, reduce 100. Nothing can overlap: 100 + 40 +
// 80 + 100 = 320.
TEST(ByHand, OneUnit) {
  ToyProgram p;
  p.gather(100).join(0, 1).launch(40).launch(80, 0, 0, Phase::kBackward).join(2, 0).reduce(100);
  const SimulationResult r = run(p);
  EXPECT_EQ(r.step_time, nanoseconds(320));
  EXPECT_EQ(r.breakdown.compute, nanoseconds(120));
  EXPECT_EQ(r.breakdown.exposed_communication, nanoseconds(200));
  ASSERT_EQ(r.communication.size(), 2u);
  EXPECT_EQ(r.communication[0].kind, CollectiveKind::kAllGather);
  EXPECT_EQ(r.communication[0].busy, nanoseconds(100));
  EXPECT_EQ(r.communication[0].exposed, nanoseconds(100));
  EXPECT_EQ(r.communication[1].exposed, nanoseconds(100));
}

// Two units, the second gather waits for the first unit's compute:
// 100 + 60 + 100 + 60 = 320.
TEST(ByHand, TwoUnitsWithoutPrefetch) {
  ToyProgram p;
  p.gather(100).join(0, 1).launch(60).join(1, 0).gather(100).join(0, 1).launch(60);
  const SimulationResult r = run(p);
  EXPECT_EQ(r.step_time, nanoseconds(320));
  EXPECT_EQ(r.breakdown.exposed_communication, nanoseconds(200));
}

// Two units with prefetch: the second gather runs during the first compute, 100 + max(60, 100) + 60
// = 260; of its 100, 40 are exposed.
TEST(ByHand, TwoUnitsWithPrefetch) {
  ToyProgram p;
  p.gather(100).join(0, 1).gather(100).launch(60).join(0, 1).launch(60);
  const SimulationResult r = run(p);
  EXPECT_EQ(r.step_time, nanoseconds(260));
  EXPECT_EQ(r.breakdown.exposed_communication, nanoseconds(140));
  EXPECT_EQ(r.communication[0].busy, nanoseconds(200));
  EXPECT_EQ(r.communication[0].exposed, nanoseconds(140));
}

// Compute longer than the gather hides it: 100 + 150 + 150 = 400, only the first gather is exposed.
TEST(ByHand, PrefetchHidesShorterGather) {
  ToyProgram p;
  p.gather(100).join(0, 1).gather(100).launch(150).join(0, 1).launch(150);
  const SimulationResult r = run(p);
  EXPECT_EQ(r.step_time, nanoseconds(400));
  EXPECT_EQ(r.breakdown.exposed_communication, nanoseconds(100));
}

// Serial lane (N-2): gather of unit 1 and reduction of unit 2 share a communicator. Compute of unit
// 2 ends at 50, its reduction (100, issued first) holds the lane until 150; the gather (80) then
// runs to 230, compute (30) to 260.
TEST(ByHand, SerialLaneOfOneCommunicator) {
  ToyProgram p;
  p.launch(50).join(2, 0).reduce(100).gather(80).join(0, 1).launch(30);
  EXPECT_EQ(run(p).step_time, nanoseconds(260));
}

// The same with the gather issued first: it runs at once (0 to 80), the reduction from 80 to 180;
// compute 80 to 110.
TEST(ByHand, SerialLaneFollowsIssueOrder) {
  ToyProgram p;
  p.launch(50).gather(80).join(2, 0).reduce(100).join(0, 1).launch(30);
  EXPECT_EQ(run(p).step_time, nanoseconds(180));
}

// Without serial lanes the first program's reduction (50 to 150) and gather (0 to 80) overlap:
// compute 80 to 110, end 150.
TEST(ByHand, WithoutSerialLaneTheyOverlap) {
  ToyProgram p;
  p.launch(50).join(2, 0).reduce(100).gather(80).join(0, 1).launch(30);
  SimulationOptions options;
  options.serialize_communicators = false;
  EXPECT_EQ(run(p, {}, 4, options).step_time, nanoseconds(150));
}

// HSDP: reduce-scatter over the shard group, then all-reduce over the replicas, another
// communicator on another stream. Two units of backward compute 100 each, reduce 60, all-reduce 70:
// unit 2: compute 0-100, reduce 100-160, all-reduce 160-230; unit 1: compute 100-200, reduce
// 200-260, all-reduce 260-330.
TEST(ByHand, HybridSharding) {
  ToyProgram p(4);
  for (int unit = 0; unit < 2; ++unit) {
    p.launch(100).join(2, 0).reduce(60, 2, 0).join(3, 2).collective(CollectiveKind::kAllReduce, 70,
                                                                    3, 1);
  }
  Schedule s = toy::schedule_of(p, 8);
  s.groups = {{"shard", 4, 1}, {"replicate", 2, 4}};
  const SimulationResult r = simulate(s, ToyCost{});
  EXPECT_EQ(r.step_time, nanoseconds(330));
  EXPECT_EQ(r.breakdown.compute, nanoseconds(200));
  EXPECT_EQ(r.breakdown.exposed_communication, nanoseconds(130));
  EXPECT_EQ(r.ranks_simulated, 1);
}

// Same with a slow all-reduce of 150: the lane of the replicas is the bottleneck: 160-310, 310-460.
TEST(ByHand, HybridShardingBoundByReplicas) {
  ToyProgram p(4);
  for (int unit = 0; unit < 2; ++unit) {
    p.launch(100).join(2, 0).reduce(60, 2, 0).join(3, 2).collective(CollectiveKind::kAllReduce, 150,
                                                                    3, 1);
  }
  Schedule s = toy::schedule_of(p, 8);
  s.groups = {{"shard", 4, 1}, {"replicate", 2, 4}};
  EXPECT_EQ(simulate(s, ToyCost{}).step_time, nanoseconds(460));
}

// Host-bound: ten kernels of 10 with 25 of dispatch each: kernel k starts at 25 k, the last at 250,
// end 260. Exposed host: the first 25, then 15 between kernels: 25 + 9 * 15 = 160.
TEST(ByHand, HostBound) {
  ToyProgram p;
  for (int i = 0; i < 10; ++i) p.launch(10, 0, 25);
  const SimulationResult r = run(p);
  EXPECT_EQ(r.step_time, nanoseconds(260));
  EXPECT_EQ(r.breakdown.compute, nanoseconds(100));
  EXPECT_EQ(r.breakdown.exposed_host, nanoseconds(160));
}

// Device-bound: dispatch 10, kernels 25: the host is ahead; 10 + 10 * 25 = 260.
TEST(ByHand, HostRunsAhead) {
  ToyProgram p;
  for (int i = 0; i < 10; ++i) p.launch(25, 0, 10);
  const SimulationResult r = run(p);
  EXPECT_EQ(r.step_time, nanoseconds(260));
  EXPECT_EQ(r.breakdown.exposed_host, nanoseconds(10));
}

// Rate limiter: the host may issue gather k + 1 only when compute k - 1 is done (it waits for its
// event). Gathers 50, computes 100: gather 0: 0-50, compute 0: 50-150, gather 1: 50-100 (issued at
// once), compute 1: 150-250; the host waits for compute 0 (150), gather 2: 150-200, hidden; compute
// 2: 250-350.
TEST(ByHand, LimiterHidden) {
  ToyProgram p;
  const std::uint32_t done[3] = {p.event(), p.event(), p.event()};
  for (int k = 0; k < 3; ++k) {
    if (k >= 2) p.sync(done[k - 2]);
    p.gather(50).join(0, 1).launch(100).record(done[k], 0);
  }
  EXPECT_EQ(run(p).step_time, nanoseconds(350));
}

// The limiter with depth one exposes every gather: the host waits for compute k before gather k +
// 1: 3 * (50 + 100) = 450.
TEST(ByHand, LimiterExposed) {
  ToyProgram p;
  const std::uint32_t done[3] = {p.event(), p.event(), p.event()};
  for (int k = 0; k < 3; ++k) {
    if (k >= 1) p.sync(done[k - 1]);
    p.gather(50).join(0, 1).launch(100).record(done[k], 0);
  }
  const SimulationResult r = run(p);
  EXPECT_EQ(r.step_time, nanoseconds(450));
  EXPECT_EQ(r.breakdown.exposed_communication, nanoseconds(150));
}

// Steady state: the second step's first gather may run during the first step's last compute when
// nothing prevents it. Step: gather 100, compute 60, no barrier. Gathers: 0-100, 100-200; computes
// 100-160, 200-260: the step takes 100.
TEST(ByHand, StepsOverlapWithoutBarrier) {
  ToyProgram p;
  for (int step = 0; step < 2; ++step) p.gather(100).join(0, 1).launch(60).end_step();
  EXPECT_EQ(run(p).step_time, nanoseconds(100));
}

// ... and 160 if the gather waits for the optimizer, which is the last compute of the step before.
TEST(ByHand, StepsWithBarrier) {
  ToyProgram p;
  for (int step = 0; step < 2; ++step)
    p.join(1, 0).gather(100).join(0, 1).launch(60, 0, 0, Phase::kOptimizer).end_step();
  const SimulationResult r = run(p);
  EXPECT_EQ(r.step_time, nanoseconds(160));
  EXPECT_EQ(r.breakdown.optimizer, nanoseconds(60));
  EXPECT_EQ(r.breakdown.exposed_communication, nanoseconds(100));
}

// Interference: kernels run 1.25 times slower while the gather (100) is active. The kernel (100)
// has done 80 of its work by then and needs 20 more: 120.
TEST(ByHand, TransfersSlowKernels) {
  ToyCost cost;
  cost.traffic[static_cast<int>(CollectiveKind::kAllGather)].interference = 0.25;
  ToyProgram p;
  p.gather(100).launch(100);
  const SimulationResult r = run(p, cost);
  EXPECT_EQ(r.step_time, nanoseconds(120));
  EXPECT_EQ(r.breakdown.interference, nanoseconds(20));
}

// A transfer holds its multiprocessors however slow it is: two gathers of 50 and 100 share a link
// until 100, together they make kernels take 1.5 times as long; then one is left (1.25) until 150.
// The kernel (200) has done 66.67 + 40 by then, 93.33 are left: 243.33.
TEST(ByHand, ThrottledTransfersSlowKernelsAsMuch) {
  ToyCost cost;
  for (auto& t : cost.traffic) t = {100, {1, 0, 0, 0}, 0.25};
  ToyProgram p;
  p.gather(50, 1, 0).reduce(100, 2, 1).launch(200);
  Schedule s = toy::schedule_of(p, 4);
  s.groups = {{"shard", 4, 1}, {"other", 4, 1}};
  EXPECT_NEAR(to_seconds(simulate(s, cost).step_time) * 1e9, 243.33, 0.02);
}

// Beside kernels a transfer runs at 1 / 1.25 of its speed: after 40 ns of kernels it has done 32 of
// its 100 and goes on alone: 40 + 68 = 108.
TEST(ByHand, KernelsSlowTransfers) {
  ToyCost cost;
  cost.traffic[static_cast<int>(CollectiveKind::kAllGather)].slowdown = 0.25;
  ToyProgram p;
  p.gather(100).launch(15).launch(25);
  EXPECT_EQ(run(p, cost).step_time, nanoseconds(108));
}

// Kernels of two streams, one after the other: the transfer is slowed without a gap. 100 * 1.25.
TEST(ByHand, AnyKernelOfTheDeviceSlowsTransfers) {
  ToyCost cost;
  cost.traffic[static_cast<int>(CollectiveKind::kAllGather)].slowdown = 0.25;
  ToyProgram p;
  p.gather(100).launch(60, 2);
  const std::uint32_t done = p.event();
  p.record(done, 2).wait(done, 0).launch(200);
  const SimulationResult r = run(p, cost);
  EXPECT_EQ(r.step_time, nanoseconds(260));
  EXPECT_EQ(r.communication[0].busy, nanoseconds(125));
}

// Kernels of two streams that would each take all of the memory bandwidth get half: the shorter
// (40) ends at 80; the longer (100) has 60 left then and goes on alone: 140.
TEST(ByHand, KernelsShareMemory) {
  ToyProgram p;
  p.launch(100).memory(100).launch(40, 2).memory(100);
  const SimulationResult r = run(p);
  EXPECT_EQ(r.step_time, nanoseconds(140));
  EXPECT_EQ(r.breakdown.interference, nanoseconds(40));
}

// A product that takes 30 % keeps them (100); the copy beside it gets the other 70 % of the 100 %
// that it would take: 70 of its 140 are done when the product ends, 70 are left: 170.
TEST(ByHand, SmallShareOfMemoryIsNotSlowed) {
  ToyProgram p;
  p.launch(100).memory(30).launch(140, 2).memory(100);
  EXPECT_EQ(run(p).step_time, nanoseconds(170));
  ToyProgram longer;  // 80 more after the product, which was not slowed
  longer.launch(100).memory(30).launch(140, 2).memory(100).launch(80);
  EXPECT_EQ(run(longer).step_time, nanoseconds(180));
}

// Together within the bandwidth: nobody is slowed. 100.
TEST(ByHand, EnoughMemoryForBoth) {
  ToyProgram p;
  p.launch(100).memory(60).launch(90, 2).memory(40);
  EXPECT_EQ(run(p).step_time, nanoseconds(100));
}

// A kernel that the host issues later takes its share from then on: the first (100, all of the
// bandwidth) runs alone until 60, then has 40 left and half the bandwidth: 140. The second (50) has
// done 40 by then and needs 10 more: 150.
TEST(ByHand, LaterKernelTakesItsShareFromItsBegin) {
  ToyProgram p;
  p.launch(100).memory(100).launch(50, 2, 60).memory(100);
  EXPECT_EQ(run(p).step_time, nanoseconds(150));
}

// The same with two that come later, 60 and 90. First: 60 alone, then 30 ns at half (15): 25 left;
// second at 90: 35 left; third 50 left. A third each: the first ends at 165 (second 10 left, third
// 25); half each: the second at 185 (third 15 left), alone: 200.
TEST(ByHand, ThreeKernelsShareMemory) {
  ToyProgram p(4);
  p.launch(100).memory(100).launch(50, 2, 60).memory(100).launch(50, 3, 30).memory(100);
  EXPECT_EQ(run(p).step_time, nanoseconds(200));
}

// Sharing and interference of a transfer multiply: at half the bandwidth and 1.25 times as long,
// each of two kernels (20) does 8 in 20 ns; the gather (20) ends, 12 are left at half: 44.
TEST(ByHand, SharedMemoryBesideATransfer) {
  ToyCost cost;
  cost.traffic[static_cast<int>(CollectiveKind::kAllGather)].interference = 0.25;
  ToyProgram p;
  p.gather(20).launch(20).memory(100).launch(20, 2).memory(100);
  EXPECT_EQ(run(p, cost).step_time, nanoseconds(44));
}

// Two collectives of different groups, each alone at the full rate of the same link, share it: both
// run at half speed until the shorter (50) is done at 100; the longer (100) has 50 left and runs
// alone: 150.
TEST(ByHand, TransfersShareALink) {
  ToyCost cost;
  for (auto& t : cost.traffic) t = {100, {1, 0, 0, 0}, 0};
  ToyProgram p;
  p.gather(50, 1, 0).reduce(100, 2, 1);
  Schedule s = toy::schedule_of(p, 4);
  s.groups = {{"shard", 4, 1}, {"other", 4, 1}};
  const SimulationResult r = simulate(s, cost);
  EXPECT_EQ(r.step_time, nanoseconds(150));
  EXPECT_EQ(r.communication[0].stretched, nanoseconds(50));
  EXPECT_EQ(r.communication[1].stretched, nanoseconds(50));
}

// Links of different kinds are not shared: 100.
TEST(ByHand, DifferentLinksDoNotShare) {
  ToyCost cost;
  cost.traffic[static_cast<int>(CollectiveKind::kAllGather)] = {100, {1, 0, 0, 0}, 0};
  cost.traffic[static_cast<int>(CollectiveKind::kReduceScatter)] = {100, {0, 1, 0, 0}, 0};
  ToyProgram p;
  p.gather(50, 1, 0).reduce(100, 2, 1);
  Schedule s = toy::schedule_of(p, 4);
  s.groups = {{"shard", 4, 1}, {"other", 4, 1}};
  EXPECT_EQ(simulate(s, cost).step_time, nanoseconds(100));
}

// A blocking copy of 30 holds the host: kernel 0-20, copy 0-30, the next kernel is issued at 30: 30
// + 40 = 70.
TEST(ByHand, BlockingCopy) {
  ToyProgram p;
  p.launch(20).copy(CopyDirection::kDeviceToHost, 30, 1, true).launch(40);
  const SimulationResult r = run(p);
  EXPECT_EQ(r.step_time, nanoseconds(70));
  ASSERT_EQ(r.copies.size(), 1u);
  EXPECT_EQ(r.copies[0].exposed, nanoseconds(10));
}

// The launch queue holds two operations: kernels of 100, dispatch 10. Issued at 10, 20; the third
// waits until the first ends at 110 and is issued then, the fourth at 210: device-bound all the
// same: 10 + 4 * 100 = 410, but host work after the fourth launch can only begin at 210.
TEST(ByHand, FullLaunchQueueBlocksTheHost) {
  ToyCost cost;
  cost.host_costs.launch_queue = 2;
  ToyProgram p;
  for (int i = 0; i < 4; ++i) p.launch(100, 0, 10);
  p.host(500).launch(1, 0, 0);
  EXPECT_EQ(run(p, cost).step_time, nanoseconds(711));
}

// An event recorded again: the wait refers to the record before it in host order, not to the later
// one. Kernel 50 on stream 1, record; wait on stream 0, kernel 10: 50-60. The second record (after
// another 100) does not count.
TEST(ByHand, WaitTakesTheLatestRecordBeforeIt) {
  ToyProgram p;
  const std::uint32_t e = p.event();
  p.launch(50, 1).record(e, 1).wait(e, 0).launch(100, 1).record(e, 1).launch(10, 0);
  const SimulationResult r = run(p);
  EXPECT_EQ(r.breakdown.compute, nanoseconds(10));
  EXPECT_EQ(r.step_time, nanoseconds(150));
}

TEST(ByHand, NoWork) {
  ToyProgram p;
  const SimulationResult r = run(p);
  EXPECT_EQ(r.step_time, Time(0));
  EXPECT_EQ(r.breakdown.total(), Time(0));
}

TEST(ByHand, WorkThatTakesNoTime) {
  ToyProgram p;
  p.gather(0).join(0, 1).launch(0).join(2, 0).reduce(0).sync_device();
  EXPECT_EQ(run(p).step_time, Time(0));
}

struct CostWithOverhead : ToyCost {
  Time step_overhead() const override { return nanoseconds(7); }
};

// 120 of work and 7 that no instruction takes, in every step: parts, path (see run()), steps and
// window say the same.
TEST(ByHand, OverheadOfAStep) {
  ToyProgram p;
  p.launch(40).launch(80, 0, 0, Phase::kBackward);
  SimulationOptions options;
  options.steps = 3;
  const SimulationResult r = run(p, CostWithOverhead(), 4, options);
  EXPECT_EQ(r.step_time, nanoseconds(127));
  EXPECT_EQ(r.step_end - r.step_start, r.step_time);
  ASSERT_FALSE(r.step_times.empty());
  for (const StepTime& t : r.step_times) EXPECT_EQ(t.end - t.start, nanoseconds(127)) << t.step;
  EXPECT_EQ(r.step_times.back().end, r.step_end);
}

}  // namespace
}  // namespace foreshard
