// From a configuration to an answer: plan and simulate Llama-3-8B (32 blocks) under FSDP2 on 32
// GPUs. "times": step time, breakdown and allocated peak; "full": the exact allocator and the whole
// timeline; "plan" and "simulate" are the halves. Also the exact search of all contiguous groupings
// of 80 blocks.

#include <benchmark/benchmark.h>

#include <memory>

#include "core/keep_memory.h"
#include "models/load_model.h"
#include "schedules/planner/planner.h"
#include "study/evaluate.h"
#include "study/wrap_search.h"

namespace foreshard {
namespace {

/// As the program does at its start.
[[maybe_unused]] const bool memory_kept = (keep_freed_memory(), true);

Job job_of(const char* model, std::int64_t gpus) {
  Job job;
  job.model = std::make_shared<const Model>(load_model(model));
  job.hardware = load_hardware("dgx-h100");
  job.gpus = gpus;
  job.config.shard = gpus;
  job.config.sequence = 4096;
  return job;
}

void config_to_answer(benchmark::State& state) {
  const Job job = job_of("llama3-8b", 32);
  SimulationOptions options;
  options.detail = state.range(0) == 0 ? Detail::kExplain : Detail::kTrace;
  for (auto _ : state) benchmark::DoNotOptimize(evaluate(job, options).result.step_time);
}
BENCHMARK(config_to_answer)->Name("config_to_answer_times")->Arg(0)->Unit(benchmark::kMicrosecond);
BENCHMARK(config_to_answer)->Name("config_to_answer_full")->Arg(1)->Unit(benchmark::kMicrosecond);

void plan_only(benchmark::State& state) {
  const Job job = job_of("llama3-8b", 32);
  PlanOptions options;
  options.executable = false;
  std::size_t instructions = 0;
  for (auto _ : state)
    instructions = plan(*job.model, job.config, options).programs[0].instructions.size();
  state.counters["instructions"] = static_cast<double>(instructions);
}
BENCHMARK(plan_only)->Unit(benchmark::kMicrosecond);

void simulate_only(benchmark::State& state) {
  const Job job = job_of("llama3-8b", 32);
  PlanOptions options;
  options.executable = false;
  const Schedule schedule = plan(*job.model, job.config, options);
  for (auto _ : state) benchmark::DoNotOptimize(simulate_on(schedule, job.hardware).step_time);
}
BENCHMARK(simulate_only)->Unit(benchmark::kMicrosecond);

void all_groupings(benchmark::State& state) {
  const WrapCosts costs = wrap_costs(job_of("llama3-70b", 64));
  for (auto _ : state) benchmark::DoNotOptimize(grouping_front(costs).size());
}
BENCHMARK(all_groupings)->Name("all_groupings_of_80_blocks_front")->Unit(benchmark::kMillisecond);

void one_grouping(benchmark::State& state) {
  const WrapCosts costs = wrap_costs(job_of("llama3-70b", 64));
  for (auto _ : state) benchmark::DoNotOptimize(best_grouping(costs).step);
}
BENCHMARK(one_grouping)->Name("all_groupings_of_80_blocks")->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace foreshard
