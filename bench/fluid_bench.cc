// The job of bench/fluid_job.h, every rank simulated, links shared; and, where SimGrid is
// installed, the same job on its fluid network in the same run. Counter "step_s" is the simulated
// step: the two must agree where the models mean the same.

#include <benchmark/benchmark.h>

#include "bench/fluid_job.h"
#include "bench/simgrid_job.h"
#include "sim/simulator.h"

namespace foreshard {
namespace {

void foreshard_fluid(benchmark::State& state) {
  const bench::FluidJob job;
  const Schedule schedule = bench::FluidWriter(job).write(state.range(0));
  const bench::FluidCost cost(job, state.range(0));
  SimulationOptions options;
  options.folding = Folding::kUnfolded;
  options.memory = MemoryDetail::kNone;
  options.detail = Detail::kTimesOnly;
  double step = 0;
  for (auto _ : state) step = to_seconds(simulate(schedule, cost, options).step_time);
  state.counters["step_s"] = step;
}
BENCHMARK(foreshard_fluid)->Arg(64)->Arg(256)->Unit(benchmark::kMillisecond);

#ifdef FORESHARD_SIMGRID
void simgrid_fluid(benchmark::State& state) {
  double step = 0;
  for (auto _ : state) {
    const bench::ForeignRun run =
        bench::run_simgrid(bench::FluidJob{}, static_cast<int>(state.range(0)), false);
    step = run.step_s;
    state.SetIterationTime(run.wall_s);
  }
  state.counters["step_s"] = step;
}
void simgrid_rounds(benchmark::State& state) {
  double step = 0;
  for (auto _ : state) {
    const bench::ForeignRun run =
        bench::run_simgrid(bench::FluidJob{}, static_cast<int>(state.range(0)), true);
    step = run.step_s;
    state.SetIterationTime(run.wall_s);
  }
  state.counters["step_s"] = step;
}
BENCHMARK(simgrid_fluid)
    ->Arg(64)
    ->Arg(256)
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(simgrid_rounds)->Arg(64)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);
#endif

}  // namespace
}  // namespace foreshard
