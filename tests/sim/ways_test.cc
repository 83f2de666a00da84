// One schedule simulated in different ways: with a trace every instruction is an act of the host,
// without, allocator calls are added up; the allocator runs before time is simulated, where steps
// that repeat are not run again, or inside the event loop. All must say the same.

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <thread>
#include <vector>

#include "sim/simulator.h"
#include "toy.h"

namespace foreshard {
namespace {

using toy::ToyCost;
using toy::ToyProgram;

constexpr std::int64_t kMiB = 1 << 20;

/// Persistent buffers, and steps that replace one of them, with temporaries, kernels and
/// collectives on three streams. All written steps are alike, but the first keeps one buffer more.
class RandomProgram {
 public:
  explicit RandomProgram(std::uint32_t seed) : random_(seed) {}

  Schedule write(bool record_streams) {
    for (int i = 0; i < 3; ++i) program_.alloc(buffer());
    std::uint32_t carried = buffer();
    program_.alloc(carried).end_init();
    const std::mt19937 step = random_;
    const int written = 2 + pick(2);
    for (int s = 0; s < written; ++s) {
      random_ = step;
      if (s == 0) program_.alloc(buffer());
      const std::uint32_t now = buffer();
      if (s + 1 == written) program_.p.carries.push_back({BufferId(carried), BufferId(now)});
      write_step(record_streams);
      program_.alloc(now).free(carried).end_step();
      carried = now;
    }
    return toy::schedule_of(program_);
  }

 private:
  int pick(int n) { return static_cast<int>(random_() % static_cast<std::uint32_t>(n)); }
  std::uint32_t buffer() { return program_.buffer((1 + pick(40)) * kMiB / 2, pick(2)); }

  void write_step(bool record_streams) {
    std::vector<std::uint32_t> live;
    for (int n = 20 + pick(40); n > 0; --n) {
      switch (pick(8)) {
        case 0:
        case 1:
          live.push_back(buffer());
          program_.alloc(live.back());
          if (record_streams && pick(2) == 0) program_.record_stream(live.back(), 2);
          break;
        case 2:
          drop(live);
          break;
        case 3:
          program_.host(pick(30));
          break;
        case 4:
          program_.gather(10 + pick(50)).join(0, 1);
          break;
        case 5:
          program_.join(1, 0);
          break;
        case 6:
          if (pick(5) == 0) program_.sync_stream(0);
          break;
        default:
          program_.launch(pick(60), pick(3), pick(8));
      }
    }
    while (!live.empty()) drop(live);
  }

  void drop(std::vector<std::uint32_t>& live) {
    if (live.empty()) return;
    const auto at = static_cast<std::size_t>(pick(static_cast<int>(live.size())));
    program_.free(live[at]);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
  }

  std::mt19937 random_;
  ToyProgram program_;
};

ToyCost random_cost(std::mt19937& random) {
  ToyCost cost;
  cost.host_costs.alloc = nanoseconds(random() % 4);
  cost.host_costs.free = nanoseconds(random() % 3);
  cost.host_costs.record_stream = nanoseconds(random() % 3);
  cost.host_costs.record_event = nanoseconds(1);
  cost.host_costs.sync = nanoseconds(random() % 5);
  cost.host_costs.segment_alloc = nanoseconds(40);
  cost.host_costs.segment_free = nanoseconds(25);
  cost.host_costs.launch_queue = 2 + random() % 12;
  cost.device.context = Bytes(16 * kMiB);
  cost.device.communicator = Bytes(2 * kMiB);
  cost.device.capacity = Bytes(static_cast<std::int64_t>(60 + random() % 300) * kMiB);
  cost.traffic[0].interference = 0.1;
  return cost;
}

/// The same with the allocator inside the event loop: a program in which a block is recorded for
/// another stream has it there, even if no step comes to the place.
Schedule with_allocator_in_loop(Schedule schedule) {
  for (RankProgram& p : schedule.programs) {
    Instruction record;
    record.kind = InstructionKind::kRecordStream;
    p.instructions.push_back(record);
  }
  return schedule;
}

void expect_equal(const Trace& a, const Trace& b) {
  ASSERT_EQ(a.spans.size(), b.spans.size());
  for (std::size_t i = 0; i < a.spans.size(); ++i) {
    EXPECT_EQ(a.spans[i].instruction, b.spans[i].instruction) << i;
    EXPECT_EQ(a.spans[i].start, b.spans[i].start) << i;
    EXPECT_EQ(a.spans[i].end, b.spans[i].end) << i;
  }
  ASSERT_EQ(a.memory.size(), b.memory.size());
  for (std::size_t i = 0; i < a.memory.size(); ++i) {
    EXPECT_EQ(a.memory[i].instruction, b.memory[i].instruction) << i;
    EXPECT_EQ(a.memory[i].step, b.memory[i].step) << i;
    EXPECT_EQ(a.memory[i].at, b.memory[i].at) << i;
    EXPECT_EQ(a.memory[i].allocated, b.memory[i].allocated) << i;
    EXPECT_EQ(a.memory[i].reserved, b.memory[i].reserved) << i;
    EXPECT_EQ(a.memory[i].active, b.memory[i].active) << i;
  }
}

void expect_equal(const SimulationResult& a, const SimulationResult& b) {
  EXPECT_EQ(a.step_time, b.step_time);
  EXPECT_EQ(a.step_start, b.step_start);
  EXPECT_EQ(a.instructions_simulated, b.instructions_simulated);
  EXPECT_EQ(a.memory.fits, b.memory.fits);
  EXPECT_EQ(a.memory.allocated_peak, b.memory.allocated_peak);
  EXPECT_EQ(a.memory.reserved_peak, b.memory.reserved_peak);
  EXPECT_EQ(a.memory.device_peak, b.memory.device_peak);
  EXPECT_EQ(a.memory.retries, b.memory.retries);
  EXPECT_EQ(a.memory.retries_total, b.memory.retries_total);
  EXPECT_EQ(a.memory.peak_at.step, b.memory.peak_at.step);
  EXPECT_EQ(a.memory.peak_at.instruction, b.memory.peak_at.instruction);
  ASSERT_EQ(a.step_memory.size(), b.step_memory.size());
  for (std::size_t i = 0; i < a.step_memory.size(); ++i) {
    EXPECT_EQ(a.step_memory[i].step, b.step_memory[i].step);
    EXPECT_EQ(a.step_memory[i].allocated_peak, b.step_memory[i].allocated_peak) << i;
    EXPECT_EQ(a.step_memory[i].reserved_peak, b.step_memory[i].reserved_peak) << i;
    EXPECT_EQ(a.step_memory[i].retries, b.step_memory[i].retries) << i;
    EXPECT_EQ(a.step_memory[i].out_of_memory, b.step_memory[i].out_of_memory) << i;
  }
  ASSERT_EQ(a.step_times.size(), b.step_times.size());
  for (std::size_t i = 0; i < a.step_times.size(); ++i)
    EXPECT_EQ(a.step_times[i].end, b.step_times[i].end) << i;
  EXPECT_EQ(a.breakdown.compute, b.breakdown.compute);
  EXPECT_EQ(a.breakdown.exposed_host, b.breakdown.exposed_host);
  ASSERT_EQ(a.critical_segments.size(), b.critical_segments.size());
  for (std::size_t i = 0; i < a.critical_segments.size(); ++i)
    EXPECT_EQ(a.critical_segments[i].instruction, b.critical_segments[i].instruction) << i;
}

TEST(Ways, TraceAndExplanationAgree) {
  int retried = 0, failed = 0, fitted = 0;
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    const Schedule schedule = RandomProgram(seed).write(seed % 4 == 0);
    std::mt19937 random(seed * 7919);
    Simulator simulator(schedule);
    const Schedule in_loop = with_allocator_in_loop(schedule);
    for (int round = 0; round < 2; ++round) {
      const ToyCost cost = random_cost(random);
      SimulationOptions options;
      options.steps = static_cast<std::int32_t>(random() % 8);
      options.allocator.expandable_segments = random() % 4 == 0;
      const SimulationResult explained = simulator.run(cost, options);
      const Fit fit = !explained.memory.fits               ? Fit::kNo
                      : explained.memory.retries_total > 0 ? Fit::kAfterRetries
                                                           : Fit::kAtOnce;
      EXPECT_EQ(simulator.fits_at_once(cost, options), fit == Fit::kAtOnce);
      EXPECT_EQ(simulator.fit(cost, options), fit);
      const MemoryResult alone = simulator.memory(cost, options);
      EXPECT_EQ(alone.fits_device, explained.memory.fits_device);
      EXPECT_EQ(alone.retries_total, explained.memory.retries_total);
      if (alone.fits_device) {
        EXPECT_EQ(alone.device_peak, explained.memory.device_peak);
      }
      retried += explained.memory.retries_total > 0 && explained.memory.fits ? 1 : 0;
      (explained.memory.fits ? fitted : failed) += 1;
      expect_equal(explained, simulate(in_loop, cost, options));
      options.detail = Detail::kTrace;
      const SimulationResult traced = simulate(schedule, cost, options);
      expect_equal(explained, traced);
      expect_equal(*traced.trace, *simulate(in_loop, cost, options).trace);
    }
  }
  // The programs reach what they are for.
  EXPECT_GT(retried, 10);
  EXPECT_GT(failed, 20);
  EXPECT_GT(fitted, 100);
}

// What simulations of one schedule share is made by the first that needs it, on whichever thread.
TEST(Ways, SimulationsOnManyThreadsAgreeWithEachOnItsOwn) {
  constexpr int kThreads = 4;
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    const Schedule schedule = RandomProgram(seed).write(seed % 4 == 0);
    std::mt19937 random(seed * 7919);
    std::vector<ToyCost> costs;
    for (int i = 0; i < kThreads; ++i) costs.push_back(random_cost(random));
    const Simulator shared(schedule);
    std::vector<SimulationResult> results(kThreads);
    std::array<Fit, kThreads> fits{};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kThreads; ++i)
      threads.emplace_back([&, i] {
        fits[i] = shared.fit(costs[i], {});
        results[i] = shared.run(costs[i]);
      });
    for (std::thread& t : threads) t.join();
    for (std::size_t i = 0; i < kThreads; ++i) {
      expect_equal(results[i], simulate(schedule, costs[i]));
      EXPECT_EQ(fits[i] != Fit::kNo, results[i].memory.fits);
    }
  }
}

}  // namespace
}  // namespace foreshard
