// Planning: from model and configuration to the schedule of one rank, operator by operator:
// plan_step with equal blocks planned once, plan_each_block without; copy_plan is the floor below
// both.

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

Model model_of(std::int64_t blocks) {
  PlainModelOptions o;
  o.layers = blocks;
  o.hidden = 8192;
  o.heads = 64;
  o.kv_heads = 8;
  o.ffn = 28672;
  o.vocabulary = 128256;
  return plain_llama(o);
}

/// Two steps of a plain Llama with `range(0)` blocks, as a simulation needs it.
void plan_steps(benchmark::State& state, FrameworkKind framework, bool share) {
  const Model model = model_of(state.range(0));
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
/// What writing such a plan costs at least: instructions and tables of a ready one, copied into
/// memory that is there.
void copy_plan(benchmark::State& state, FrameworkKind framework) {
  PlanOptions options;
  options.executable = false;
  const Schedule made = plan(model_of(state.range(0)), job_of(framework), options);
  const RankProgram& from = made.programs[0];
  RankProgram to = from;
  std::size_t bytes = 0;
  const auto copy = [&](const auto& table, auto& into) {
    into = table;
    bytes += sizeof(table[0]) * table.size();
  };
  for (auto _ : state) {
    bytes = 0;
    copy(from.instructions, to.instructions);
    copy(from.buffers, to.buffers);
    copy(from.launches, to.launches);
    copy(from.collectives, to.collectives);
    copy(from.copies, to.copies);
    copy(from.host_work, to.host_work);
    copy(from.marks, to.marks);
    benchmark::ClobberMemory();
  }
  state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK_CAPTURE(copy_plan, unsharded, FrameworkKind::kUnsharded)
    ->Arg(80)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(copy_plan, fsdp2, FrameworkKind::kFsdp2)->Arg(80)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(copy_plan, zero3, FrameworkKind::kZero3)->Arg(80)->Unit(benchmark::kMicrosecond);
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
