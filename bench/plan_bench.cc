// Planning: from model and configuration to the schedule of one rank, operator by operator (no
// template of equal blocks).

#include <benchmark/benchmark.h>

#include "models/plain/plain_models.h"
#include "schedules/planner/framework_table.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

ParallelConfig job_of(FrameworkKind framework) {
  ParallelConfig c;
  c.framework = framework;
  const bool sharded = !row_of(framework).whole_copies();
  (sharded ? c.shard : c.replicate) = framework == FrameworkKind::kUnsharded ? 1 : 32;
  c.sequence = 4096;
  return c;
}

/// One steady step of a plain Llama with `range(0)` blocks, as a simulation needs it.
void plan_step(benchmark::State& state, FrameworkKind framework) {
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
BENCHMARK_CAPTURE(plan_step, unsharded, FrameworkKind::kUnsharded)
    ->Arg(32)
    ->Arg(80)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plan_step, ddp, FrameworkKind::kDdp)->Arg(80)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plan_step, fsdp2, FrameworkKind::kFsdp2)
    ->Arg(32)
    ->Arg(80)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(plan_step, zero3, FrameworkKind::kZero3)->Arg(80)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace foreshard
