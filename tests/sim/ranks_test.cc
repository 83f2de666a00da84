// Folding, variation between ranks, determinism, schedules that cannot run.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "core/error.h"
#include "schedules/structure.h"
#include "sim/distribution.h"
#include "sim/mixed_cost.h"
#include "sim/simulator.h"
#include "toy.h"

namespace foreshard {
namespace {

using toy::ToyCost;
using toy::ToyProgram;

/// A random sharded step over a shard group and its replicas: gathers ahead, reductions behind,
/// host syncs, copies.
Schedule random_schedule(std::uint64_t seed, std::int64_t shard, std::int64_t replicate) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  ToyProgram p(4);
  for (int step = 0; step < 2; ++step) {
    std::vector<std::uint32_t> done;
    for (int unit = 0; unit < 6; ++unit) {
      if (pick(3) == 0 && done.size() > 2) p.sync(done[done.size() - 2]);
      if (pick(4) == 0) p.host(pick(300));
      p.gather(pick(200), 1, 0);
      p.join(0, 1);
      for (std::int64_t k = pick(5); k >= 0; --k) p.launch(pick(150), 0, pick(40));
      if (pick(2)) p.join(2, 0).reduce(pick(200), 2, 0);
      if (pick(2)) p.join(3, 2).collective(CollectiveKind::kAllReduce, pick(200), 3, 1);
      if (pick(4) == 0) p.copy(CopyDirection::kHostToDevice, pick(100), 3, pick(2) == 0);
      done.push_back(p.event());
      p.record(done.back(), 0);
    }
    if (pick(2)) p.sync_device();
    p.end_step();
  }
  Schedule s = toy::schedule_of(p, shard * replicate);
  s.groups = {{"shard", shard, 1}, {"replicate", replicate, shard}};
  return s;
}

ToyCost busy_links() {
  ToyCost cost;
  for (auto& t : cost.traffic) t = {80, {1, 0, 0.5, 0}, 0.3};
  return cost;
}

TEST(Folding, UnfoldedGivesTheSameAnswer) {
  const ToyCost cost = busy_links();
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const Schedule s = random_schedule(seed, 4, seed % 2 ? 2 : 1);
    SimulationOptions folded, unfolded;
    unfolded.folding = Folding::kUnfolded;
    const SimulationResult a = simulate(s, cost, folded), b = simulate(s, cost, unfolded);
    ASSERT_EQ(a.ranks_simulated, 1) << seed;
    ASSERT_EQ(b.ranks_simulated, s.world) << seed;
    ASSERT_EQ(a.step_time, b.step_time) << seed;
    ASSERT_EQ(a.breakdown.compute, b.breakdown.compute) << seed;
    ASSERT_EQ(a.breakdown.exposed_communication, b.breakdown.exposed_communication) << seed;
    ASSERT_EQ(a.breakdown.exposed_host, b.breakdown.exposed_host) << seed;
    ASSERT_EQ(a.breakdown.idle, b.breakdown.idle) << seed;
    ASSERT_EQ(a.communication.size(), b.communication.size()) << seed;
    for (std::size_t i = 0; i < a.communication.size(); ++i) {
      ASSERT_EQ(a.communication[i].busy, b.communication[i].busy) << seed;
      ASSERT_EQ(a.communication[i].exposed, b.communication[i].exposed) << seed;
    }
    ASSERT_EQ(a.breakdown.total(), a.step_time) << seed;
    ASSERT_EQ(b.breakdown.total(), b.step_time) << seed;
  }
}

// Two programs (even and odd ranks): the quotient keeps one rank of each; the gather waits for the
// slower one.
TEST(Folding, OneRankOfEachProgram) {
  ToyProgram fast, slow;
  fast.launch(10).join(1, 0).gather(100).join(0, 1).launch(5);
  slow.launch(70).join(1, 0).gather(100).join(0, 1).launch(5);
  Schedule s = toy::schedule_of(fast, 4);
  slow.end_step();
  s.programs.push_back(slow.p);
  s.program_of_rank = {0, 1, 0, 1};
  const SimulationResult r = simulate(s, ToyCost{});
  EXPECT_EQ(r.ranks_simulated, 2);
  EXPECT_EQ(r.step_time, nanoseconds(175));
}

// Ranks 0-3 lie on one node, 4-7 on two: their groups look different, so they are not folded
// together.
TEST(Folding, GroupsThatLieDifferentlyAreKeptApart) {
  ToyProgram p;
  p.gather(100);
  Schedule s = toy::schedule_of(p, 8);
  s.groups = {{"shard", 4, 1}};
  ToyCost cost;
  cost.gpus_per_node = 6;
  EXPECT_EQ(simulate(s, cost).ranks_simulated, 2);
  cost.gpus_per_node = 8;
  EXPECT_EQ(simulate(s, cost).ranks_simulated, 1);
}

// Rank 2 computes half as fast: everyone waits for it at the gather. 100 * 2 + 50 = 250. A fast
// rank is idle for 100.
TEST(Variation, EveryoneWaitsForTheStraggler) {
  ToyProgram p;
  p.launch(100).join(1, 0).gather(50);
  SimulationOptions o;
  o.variation.rank_compute = {1, 1, 2, 1};
  const SimulationResult r = simulate(toy::schedule_of(p), ToyCost{}, o);
  EXPECT_EQ(r.ranks_simulated, 4);
  EXPECT_EQ(r.step_time, nanoseconds(250));
}

// Rank 2's link runs at half speed: the gather of all four takes 100 instead of 50, 100 + 100 =
// 200. Its own copy takes 60 instead of 30; the other ranks' copies are hidden behind it.
TEST(Variation, TheSlowestLinkSetsThePaceOfACollective) {
  ToyProgram p;
  p.launch(100).join(1, 0).gather(50);
  SimulationOptions o;
  o.variation.rank_link = {1, 1, 2, 1};
  const SimulationResult r = simulate(toy::schedule_of(p), ToyCost{}, o);
  EXPECT_EQ(r.ranks_simulated, 4);
  EXPECT_EQ(r.step_time, nanoseconds(200));
  ToyProgram copies;
  copies.copy(CopyDirection::kHostToDevice, 30, 1, false);
  EXPECT_EQ(simulate(toy::schedule_of(copies), ToyCost{}, o).step_time, nanoseconds(60));
}

/// A machine whose network takes `times` as long and carries as much less.
std::unique_ptr<ToyCost> machine(double times) {
  struct Slow : ToyCost {
    double times = 1;
    TransferCost collective(const Collective& c, std::span<const std::int64_t> r) const override {
      TransferCost cost = ToyCost::collective(c, r);
      cost.device = Time(std::llround(static_cast<double>(cost.device.value) * times));
      return cost;
    }
  };
  auto m = std::make_unique<Slow>();
  m->times = times;
  m->gpus_per_node = 2;
  m->capacities[static_cast<std::size_t>(Link::kNetwork)] = 100 / times;
  return m;
}

std::unique_ptr<CostModel> mixed(double usual, double other) {
  std::vector<MachineRanks> others;
  others.push_back({2, 3, machine(other)});
  return make_mixed_cost(machine(usual), std::move(others));
}

// Four ranks on two nodes, launch 100, then a gather of 50: over all of them it takes what the
// slower machine asks, whichever of the two is named; within a pair what its own machine asks.
TEST(MixedMachines, ACollectiveTakesItsSlowestMachine) {
  ToyProgram p;
  p.launch(100).join(1, 0).gather(50);
  const Schedule s = toy::schedule_of(p);
  EXPECT_EQ(simulate(s, *mixed(1, 1), {}).step_time, nanoseconds(150));
  EXPECT_EQ(simulate(s, *mixed(1, 3), {}).step_time, nanoseconds(250));
  EXPECT_EQ(simulate(s, *mixed(3, 1), {}).step_time, nanoseconds(250));
  EXPECT_EQ(simulate(s, *machine(3), {}).step_time, nanoseconds(250));
  Collective c;
  c.bytes = Bytes(50);
  const std::array<std::int64_t, 2> first{0, 1}, second{2, 3};
  EXPECT_EQ(mixed(1, 3)->collective(c, first).device, nanoseconds(50));
  EXPECT_EQ(mixed(1, 3)->collective(c, second).device, nanoseconds(150));
}

// A flow through the slower machine's network fills it: its share stands in the usual capacity.
TEST(MixedMachines, TrafficCountsAgainstItsOwnLinks) {
  auto slow = machine(4);
  for (auto& t : slow->traffic) t.weight[static_cast<std::size_t>(Link::kNetwork)] = 1;
  std::vector<MachineRanks> others;
  others.push_back({0, 1, std::move(slow)});
  const auto cost = make_mixed_cost(machine(1), std::move(others));
  Collective c;
  c.bytes = Bytes(50);
  const std::array<std::int64_t, 2> ranks{0, 1};
  EXPECT_DOUBLE_EQ(cost->collective(c, ranks).weight[static_cast<std::size_t>(Link::kNetwork)], 4);
}

TEST(Variation, SameSeedSameAnswerAndDifferentSeedsDiffer) {
  const Schedule s = random_schedule(5, 4, 2);
  SimulationOptions o;
  o.variation.kernel_sigma = 0.1;
  o.variation.step_sigma = 0.05;
  o.variation.collective_sigma = 0.1;
  const Time first = simulate(s, ToyCost{}, o).step_time;
  EXPECT_EQ(simulate(s, ToyCost{}, o).step_time, first);
  o.variation.seed = 2;
  EXPECT_NE(simulate(s, ToyCost{}, o).step_time, first);
}

TEST(Variation, DistributionDoesNotDependOnThreads) {
  const Schedule s = random_schedule(9, 4, 2);
  SimulationOptions o;
  o.variation.kernel_sigma = 0.2;
  const StepDistribution one = simulate_distribution(s, ToyCost{}, o, 24, 1);
  const StepDistribution four = simulate_distribution(s, ToyCost{}, o, 24, 4);
  EXPECT_EQ(one.samples, four.samples);
  EXPECT_LE(one.p10, one.median);
  EXPECT_LE(one.median, one.p90);
  EXPECT_LT(one.p10, one.p90);
}

// The slowest of many ranks sets the pace: with kernel variation the mean step of 8 synchronised
// ranks is longer.
TEST(Variation, TheTailCosts) {
  ToyProgram p;
  for (int i = 0; i < 4; ++i) p.launch(1000).join(1, 0).gather(10).join(0, 1);
  SimulationOptions o;
  o.variation.kernel_sigma = 0.1;
  EXPECT_GT(simulate_distribution(toy::schedule_of(p, 8), ToyCost{}, o, 20, 2).cost, 0.05);
}

std::string error_of(const Schedule& s, SimulationOptions o = {}) {
  try {
    simulate(s, ToyCost{}, o);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

TEST(Hostile, WaitForAnEventThatWasNeverRecorded) {
  ToyProgram p;
  p.launch(1);
  const std::uint32_t e = p.event();
  p.wait(e, 0).record(e, 0);
  const std::string text = error_of(toy::schedule_of(p));
  EXPECT_NE(text.find("never recorded"), std::string::npos) << text;
  EXPECT_NE(text.find("instruction 1"), std::string::npos) << text;
}

TEST(Hostile, HostWaitForAnEventThatWasNeverRecorded) {
  ToyProgram p;
  p.sync(p.event());
  EXPECT_NE(error_of(toy::schedule_of(p)).find("never recorded"), std::string::npos);
}

// Ranks issue the two collectives of one group in opposite order.
TEST(Hostile, CollectivesInDifferentOrder) {
  ToyProgram a, b;
  a.gather(10).reduce(20);
  b.reduce(20).gather(10);
  Schedule s = toy::schedule_of(a, 2);
  b.end_step();
  s.programs.push_back(b.p);
  s.program_of_rank = {0, 1};
  const std::string text = error_of(s);
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  EXPECT_NE(text.find("reduce-scatter"), std::string::npos) << text;
}

// Rank 1 never comes to the second gather.
TEST(Hostile, DeadlockNamesRanksAndInstructions) {
  ToyProgram a, b;
  a.gather(10).gather(10).sync_device();
  b.gather(10).sync_device();
  Schedule s = toy::schedule_of(a, 2);
  b.end_step();
  s.programs.push_back(b.p);
  s.program_of_rank = {0, 1};
  const std::string text = error_of(s);
  EXPECT_NE(text.find("deadlock"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 0, instruction 1"), std::string::npos) << text;
  EXPECT_NE(text.find("1 of 2 ranks"), std::string::npos) << text;
}

// Two groups in opposite order: each rank's first collective waits for the other rank's second.
TEST(Hostile, DeadlockOfTwoCommunicators) {
  ToyProgram a, b;
  a.gather(10, 1, 0).gather(10, 1, 1);
  b.gather(10, 1, 1).gather(10, 1, 0);
  Schedule s = toy::schedule_of(a, 2);
  s.groups.push_back({"other", 2, 1});
  b.end_step();
  s.programs.push_back(b.p);
  s.program_of_rank = {0, 1};
  EXPECT_NE(error_of(s).find("deadlock"), std::string::npos);
}

TEST(Hostile, IndicesOutsideTheirTables) {
  ToyProgram p;
  p.launch(1);
  Schedule s = toy::schedule_of(p);
  s.programs[0].instructions[0].id = 7;
  EXPECT_NE(error_of(s).find("instructions[0]"), std::string::npos);
  s = toy::schedule_of(p);
  s.programs[0].launches[0].stream = 9;
  EXPECT_NE(error_of(s).find("launches[0]"), std::string::npos);
  s = toy::schedule_of(p);
  s.program_of_rank = {3};
  EXPECT_NE(error_of(s).find("program_of_rank"), std::string::npos);
  s = toy::schedule_of(p);
  s.groups[0].size = 3;
  EXPECT_NE(error_of(s).find("groups[0]"), std::string::npos);
  s = toy::schedule_of(p);
  s.programs[0].steps[0].end = 99;
  EXPECT_NE(error_of(s).find("steps"), std::string::npos);
  s = toy::schedule_of(p);
  s.programs[0].steps.clear();
  EXPECT_NE(error_of(s).find("steps"), std::string::npos);
  s = toy::schedule_of(p);
  s.programs[0].streams.clear();
  EXPECT_NE(error_of(s).find("streams"), std::string::npos);
}

// One check of structure for whoever walks a schedule: what the reader of files refuses is refused
// here, too, also in programs that no rank runs.
TEST(Hostile, TheSameLimitsAsInFiles) {
  ToyProgram p;
  p.launch(1).gather(5).host(5);
  Schedule s = toy::schedule_of(p);
  s.programs[0].streams.resize(kMostStreams + 1);
  EXPECT_NE(error_of(s).find("streams"), std::string::npos);
  s = toy::schedule_of(p);
  s.programs[0].collectives[0].bytes = Bytes(kLargestBuffer + 1);
  EXPECT_NE(error_of(s).find("collectives[0]"), std::string::npos);
  s = toy::schedule_of(p);
  s.programs[0].host_work[0].name = 99;
  EXPECT_NE(error_of(s).find("host_work[0]"), std::string::npos);
  s = toy::schedule_of(p);
  s.programs.push_back(s.programs[0]);
  s.programs[1].collectives[0].group = GroupId(99);
  EXPECT_NE(error_of(s).find("programs[1].collectives[0]"), std::string::npos);
}

TEST(Hostile, AbsurdNumbers) {
  ToyProgram p;
  p.launch(1).gather(5).host(5);
  Schedule s = toy::schedule_of(p);
  s.world = std::int64_t{1} << 40;
  EXPECT_NE(error_of(s).find("world"), std::string::npos);
  s = toy::schedule_of(p);
  s.programs[0].collectives[0].bytes = Bytes(INT64_MAX);
  EXPECT_NE(error_of(s).find("collectives[0]"), std::string::npos);
  s = toy::schedule_of(p);
  s.programs[0].host_work[0].reference_ns = INT64_MAX;
  EXPECT_NE(error_of(s).find("host_work[0]"), std::string::npos);
  s = toy::schedule_of(p);
  s.programs[0].launches[0].dims[0] = 4'000'000'000'000'000;  // 46 days
  EXPECT_NE(error_of(s).find("46 days"), std::string::npos);
}

TEST(Hostile, SenselessVariation) {
  ToyProgram p;
  p.launch(1);
  SimulationOptions o;
  o.variation.rank_compute = {1, -2};
  EXPECT_NE(error_of(toy::schedule_of(p), o).find("rank_compute[1]"), std::string::npos);
  o.variation.rank_compute.clear();
  o.variation.kernel_sigma = std::nan("");
  EXPECT_NE(error_of(toy::schedule_of(p), o).find("standard deviation"), std::string::npos);
}

TEST(Hostile, WorldOfOne) {
  ToyProgram p;
  p.gather(10).join(0, 1).launch(5);
  EXPECT_EQ(simulate(toy::schedule_of(p, 1), ToyCost{}).step_time, nanoseconds(15));
}

TEST(Hostile, CollectiveWithoutGroup) {
  ToyProgram p;
  p.collective(CollectiveKind::kAllReduce, 5, 0, 4);
  EXPECT_NE(error_of(toy::schedule_of(p)).find("group"), std::string::npos)
      << error_of(toy::schedule_of(p));
}

TEST(Repeats, TheLastStepIsRepeated) {
  ToyProgram p;
  p.launch(100).end_step().launch(70).end_step();
  SimulationOptions o;
  o.steps = 5;
  const SimulationResult r = simulate(toy::schedule_of(p), ToyCost{}, o);
  ASSERT_EQ(r.step_times.size(), 5u);
  EXPECT_EQ(r.step_times[0].end - r.step_times[0].start, nanoseconds(100));
  EXPECT_EQ(r.step_times[4].end - r.step_times[4].start, nanoseconds(70));
  EXPECT_EQ(r.step_times[4].end, nanoseconds(380));
}

// A pipeline of two stages: stage 0 computes 100 and sends 20; stage 1 receives and computes 30:
// 150.
TEST(SendReceive, TwoStages) {
  ToyProgram a, b;
  a.launch(100).join(1, 0).collective(CollectiveKind::kSendReceive, 20, 1, 0);
  b.collective(CollectiveKind::kSendReceive, 20, 1, 0).join(0, 1).launch(30);
  a.p.collectives[0].root = 1;
  b.p.collectives[0].root = 0;
  Schedule s = toy::schedule_of(a, 2);
  b.end_step();
  s.programs.push_back(b.p);
  s.program_of_rank = {0, 1};
  EXPECT_EQ(simulate(s, ToyCost{}).step_time, nanoseconds(150));
}

}  // namespace
}  // namespace foreshard
