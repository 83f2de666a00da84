// Simulator speed on a ready schedule (bench/step_writer.h), 32 ranks folded into one; each
// iteration simulates it whole. "floor" is the cheapest pass over a task graph of the same shape.
// Counters: ns_per_instruction of one simulation (both steps), instructions.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <vector>

#include "bench/floor.h"
#include "bench/fluid_job.h"
#include "bench/step_writer.h"
#include "hwprofiles/profile.h"
#include "sim/hardware_cost.h"

namespace foreshard {
namespace {

using bench::make_schedule;

void run(benchmark::State& state, const Schedule& schedule, const SimulationOptions& options) {
  const auto cost =
      make_cost_model(make_cluster(load_hardware("dgx-h100"), static_cast<int>(schedule.world)));
  std::int64_t instructions = 0;
  const std::clock_t begin = std::clock();
  for (auto _ : state) {
    const SimulationResult r = simulate(schedule, *cost, options);
    instructions += r.instructions_simulated;
    benchmark::DoNotOptimize(r.step_time);
  }
  const double ns = static_cast<double>(std::clock() - begin) * 1e9 / CLOCKS_PER_SEC;
  state.counters["ns_per_instruction"] =
      ns / static_cast<double>(std::max<std::int64_t>(instructions, 1));
  state.counters["instructions"] =
      static_cast<double>(instructions) / static_cast<double>(state.iterations());
}

SimulationOptions options_of(MemoryDetail memory, Detail detail) {
  SimulationOptions o;
  o.memory = memory;
  o.detail = detail;
  return o;
}

/// What no simulator of a task graph can undercut (bench/floor.h), a million tasks.
void floor(benchmark::State& state) {
  bench::Floor floor(1'000'000);
  std::int64_t tasks = 0;
  const std::clock_t begin = std::clock();
  for (auto _ : state) {
    benchmark::DoNotOptimize(floor.run().peak);
    tasks += floor.size();
  }
  const double ns = static_cast<double>(std::clock() - begin) * 1e9 / CLOCKS_PER_SEC;
  state.counters["ns_per_instruction"] = ns / static_cast<double>(std::max<std::int64_t>(tasks, 1));
}

void folded_times(benchmark::State& state) {
  run(state, make_schedule(2), options_of(MemoryDetail::kNone, Detail::kTimesOnly));
}
void folded_memory(benchmark::State& state) {
  run(state, make_schedule(2), options_of(MemoryDetail::kClasses, Detail::kTimesOnly));
}
void folded_explained(benchmark::State& state) {
  run(state, make_schedule(2), options_of(MemoryDetail::kClasses, Detail::kExplain));
}
void folded_trace(benchmark::State& state) {
  run(state, make_schedule(2), options_of(MemoryDetail::kClasses, Detail::kTrace));
}
void unfolded(benchmark::State& state) {
  SimulationOptions o = options_of(MemoryDetail::kNone, Detail::kTimesOnly);
  o.folding = Folding::kUnfolded;
  run(state, make_schedule(1, state.range(0)), o);
}

BENCHMARK(floor)->Unit(benchmark::kMicrosecond);
BENCHMARK(folded_times)->Unit(benchmark::kMicrosecond);
BENCHMARK(folded_memory)->Unit(benchmark::kMicrosecond);
BENCHMARK(folded_explained)->Unit(benchmark::kMicrosecond);
BENCHMARK(folded_trace)->Unit(benchmark::kMicrosecond);
/// Ranks that differ by a little: nothing can be folded. The job of the yardsticks
/// (bench/fluid_job.h), 32 blocks.
void distinct(benchmark::State& state) {
  const bench::FluidJob job;
  const Schedule schedule = bench::FluidWriter(job).write(state.range(0));
  const bench::FluidCost cost(job, state.range(0));
  SimulationOptions o = options_of(MemoryDetail::kNone, Detail::kTimesOnly);
  o.variation.step_sigma = 0.02;
  for (auto _ : state) benchmark::DoNotOptimize(simulate(schedule, cost, o).step_time);
}

BENCHMARK(unfolded)->Arg(32)->Arg(256)->Arg(1024)->Unit(benchmark::kMillisecond);
BENCHMARK(distinct)->Arg(1024)->Arg(16384)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace foreshard
