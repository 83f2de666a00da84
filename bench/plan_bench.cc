// Planning: from model and configuration to the schedule of one rank, operator by operator:
// plan_step with equal blocks planned once, plan_each_block without.

#include <benchmark/benchmark.h>

#include "core/keep_memory.h"
#include "models/plain/plain_models.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

/// As the program does at its start.
[[maybe_unused]] const bool memory_kept = (keep_freed_memory(), true);

ParallelConfig job_of(FrameworkKind framework) {
  ParallelConfig c;
  c.framework = framework;
  const bool sharded = !row_of(framework).whole_copies();
  (sharded ? c.shard : c.replicate) = framework == FrameworkKind::kUnsharded ? 1 : 32;
  c.sequence = 4096;
  return c;
}

/// Two steps of a plain Llama with `range(0)` blocks, as a simulation needs it.
void plan_steps(benchmark::State& state, FrameworkKind framework, bool share) {
  PlainModelOptions o;
  o.layers = state.range(0);
  o.hidden = 8192;
  o.heads = 64;
  o.kv_heads = 8;
  o.ffn = 28672;
  o.vocabulary = 128256;
  const Model model = plain_llama(o);
  const ParallelConfig config = job_of(framework);
  PlanOptions options;
  options.executable = false;
  options.share_blocks = share;
  std::size_t instructions = 0;
  for (auto _ : state) {
    const Schedule s = plan(model, config, options);
    instructions = s.programs[0].instructions.size();
    benchmark::DoNotOptimize(s);
  }
  state.counters["instructions"] = static_cast<double>(instructions);
  state.counters["ns_per_instruction"] = benchmark::Counter(
      static_cast<double>(instructions) * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
void plan_step(benchmark::State& state, FrameworkKind framework) {
  plan_steps(state, framework, true);
}
void plan_each_block(benchmark::State& state, FrameworkKind framework) {
  plan_steps(state, framework, false);
}
BENCHMARK_CAPTURE(plan_step, unsharded, FrameworkKind::kUnsharded)
    ->Arg(32)
    ->Arg(80)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plan_step, ddp, FrameworkKind::kDdp)->Arg(80)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plan_step, fsdp2, FrameworkKind::kFsdp2)
    ->Arg(32)
    ->Arg(80)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plan_step, fsdp1, FrameworkKind::kFsdp1)->Arg(80)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plan_step, zero3, FrameworkKind::kZero3)->Arg(80)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plan_each_block, unsharded, FrameworkKind::kUnsharded)
    ->Arg(80)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plan_each_block, fsdp2, FrameworkKind::kFsdp2)
    ->Arg(80)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace foreshard
