// Property: a schedule executed by CPU ranks is the schedule that was simulated. On random toy jobs
// every instruction comes in the same order with the same bytes on both sides, and the allocated
// peak of every rank and step is the same to the byte. Nothing here knows an expected value: the
// two sides share the schedule and the allocator, no other code.

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>

#include "exec/run.h"
#include "models/plain/plain_models.h"
#include "report/compare.h"
#include "report/trace_document.h"
#include "schedules/planner/planner.h"
#include "schedules/validate.h"
#include "sim/hardware_cost.h"
#include "tests/endtoend/dice.h"

namespace foreshard {
namespace {

constexpr int kCases = 220;

using fixture::Dice;

Model toy_model(Dice& dice) {
  PlainModelOptions o;
  o.layers = 1 + dice.below(3);
  o.hidden = dice.of({32, 48});
  o.heads = 2;
  o.ffn = dice.of({56, 72});
  o.vocabulary = dice.of({37, 50});
  o.max_sequence = 32;
  o.tied = dice.one_in(4);
  return dice.one_in(3) ? plain_gpt2(o) : plain_llama(o);
}

bool has_tied_parameters(const Model& model) {
  std::set<ParameterId> seen;
  for (const Module& m : model.modules) {
    for (const OwnedParameter& p : m.parameters) {
      if (!seen.insert(p.id).second) return true;
    }
  }
  return false;
}

/// FSDP1 has no groups of blocks and other words for resharding and prefetch. Left out, since
/// PyTorch fails: a parameter tied across units with original parameters (the second unit has none,
/// F1-G-6), and reentrant checkpoints of blocks that are no units (the first one's backward frees
/// the root's parameters under the others).
void set_fsdp1(Dice& dice, const Model& model, ParallelConfig& c) {
  using Strategy = Fsdp1Options::Strategy;
  using Prefetch = Fsdp1Options::BackwardPrefetch;
  c.reshard = {};
  c.wrap.every = 1;
  c.prefetch_forward.reset();
  c.prefetch_backward.reset();
  c.fsdp1.strategy =
      c.replicate > 1 ? dice.of({Strategy::kHybrid, Strategy::kHybridZero2})
                      : dice.of({Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard});
  c.fsdp1.backward_prefetch = dice.of({Prefetch::kPre, Prefetch::kPost, Prefetch::kNone});
  c.fsdp1.forward_prefetch = dice.one_in(2);
  c.fsdp1.limit_all_gathers = !dice.one_in(3);
  c.fsdp1.use_orig_params = dice.one_in(2);
  if (dice.one_in(4)) c.offload = OffloadKind::kParameters;
  c.checkpoint_outside_units = dice.one_in(3);
  c.checkpoint_reentrant = c.checkpoint != CheckpointKind::kSelectiveOp && dice.one_in(3);
  if (c.fsdp1.use_orig_params && has_tied_parameters(model)) c.wrap.root_split = false;
  if (c.wrap.kind == WrapPolicy::Kind::kRootOnly) c.checkpoint_reentrant = false;
}

ParallelConfig toy_config(Dice& dice, const Model& model) {
  ParallelConfig c;
  c.framework = dice.of({FrameworkKind::kFsdp2, FrameworkKind::kFsdp2, FrameworkKind::kFsdp1,
                         FrameworkKind::kFsdp1, FrameworkKind::kUnsharded});
  c.shard = c.framework == FrameworkKind::kUnsharded ? 1 : dice.of({1, 2, 3, 4});
  if (c.shard == 2 && dice.one_in(3)) c.replicate = 2;
  c.micro_batch = 1 + dice.below(2);
  c.sequence = dice.of({8, 12});
  c.accumulate = 1 + dice.below(2);
  c.sync_each_micro_batch = dice.one_in(2);
  c.wrap.kind =
      dice.of({WrapPolicy::Kind::kBlocks, WrapPolicy::Kind::kEveryK, WrapPolicy::Kind::kRootOnly});
  c.wrap.every = 2;
  c.wrap.root_split = dice.one_in(2);
  if (dice.one_in(3))
    c.reshard = Reshard::no();
  else if (c.shard == 4 && dice.one_in(2))
    c.reshard = Reshard::to_group(2);
  if (dice.one_in(3))
    c.precision = {std::nullopt, std::nullopt, std::nullopt, std::nullopt, true};
  else if (dice.one_in(3))
    c.precision.reduce = DType::kBFloat16;
  c.checkpoint = dice.of({CheckpointKind::kNone, CheckpointKind::kFull, CheckpointKind::kEveryK,
                          CheckpointKind::kSelectiveOp});
  c.checkpoint_every = 2;
  c.optimizer = dice.of({OptimizerKind::kAdamWFused, OptimizerKind::kAdamWForeach,
                         OptimizerKind::kAdamWForLoop, OptimizerKind::kSgd});
  c.clip = dice.one_in(2);
  if (dice.one_in(4)) c.prefetch_forward = 1 + dice.below(2);
  if (dice.one_in(4)) c.prefetch_backward = dice.below(3);
  if (c.framework == FrameworkKind::kFsdp1) set_fsdp1(dice, model, c);
  return c;
}

using Peaks = std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t>;

Peaks peaks_of(const Trace& trace) {
  Peaks peaks;
  for (const StepMemory& m : trace.step_memory) peaks[{m.rank, m.step}] = m.allocated_peak.value;
  return peaks;
}

Trace simulated(const Schedule& schedule) {
  SimulationOptions options;
  options.detail = Detail::kTrace;
  options.folding = Folding::kUnfolded;
  options.device_memory = Bytes(std::int64_t{4} << 30);
  SimulationResult result = simulate(
      schedule, make_cluster(load_hardware("dgx-h100"), static_cast<int>(schedule.world)), options);
  return std::move(*result.trace);
}

Trace executed(const Schedule& schedule, StreamMode mode) {
  RunOptions options;
  options.mode = mode;
  return run(schedule, options).trace;
}

class ExecutedEqualsSimulated : public testing::TestWithParam<int> {};

TEST_P(ExecutedEqualsSimulated, OrderBytesAndPeaks) {
  const int seed = GetParam();
  Dice dice(static_cast<std::uint32_t>(seed) * 2654435761u + 1);
  const Model model = toy_model(dice);
  const ParallelConfig config = toy_config(dice, model);
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Schedule schedule = plan(model, config);
  const auto findings = validate(schedule);
  ASSERT_TRUE(findings.empty()) << findings.front().message;
  const Trace expected = simulated(schedule);
  const Trace found =
      executed(schedule, dice.one_in(3) ? StreamMode::kThreads : StreamMode::kInline);
  const Peaks a = peaks_of(expected), b = peaks_of(found);
  EXPECT_GT(b.size(), 0u);
  EXPECT_EQ(a, b);
  const Comparison c =
      compare(make_trace_document(schedule, expected), make_trace_document(schedule, found));
  EXPECT_TRUE(c.order_equal);
  EXPECT_TRUE(c.bytes_equal);
  EXPECT_EQ(c.ranks, schedule.world);
  EXPECT_GT(c.instructions, 50);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ExecutedEqualsSimulated, testing::Range(0, kCases));

/// Per rank and step: allocated and reserved.
std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::int64_t, std::int64_t>> memory_of(
    const Trace& trace) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::int64_t, std::int64_t>> out;
  for (const StepMemory& m : trace.step_memory)
    out[{m.rank, m.step}] = {m.allocated_peak.value, m.reserved_peak.value};
  return out;
}

// Blocks of more than a megabyte are served up to a megabyte too large (should_split), so that
// which block is free decides about allocated bytes. FSDP1's gathered parameters are free when
// another stream is done with them: at predicted times that the executor is given, on a GPU that
// keeps up with the host (long sequences: one that does not), whatever the CPU's threads do.
TEST(ExecutedEqualsSimulated, MemoryOfLargeBlocks) {
  for (const std::int64_t hidden : {640, 768}) {
    for (const std::int64_t sequence : {16, 256}) {
      PlainModelOptions o;
      o.layers = 4;
      o.hidden = hidden;
      o.heads = 4;
      o.ffn = 900;
      o.vocabulary = 1000;
      ParallelConfig c;
      c.framework = FrameworkKind::kFsdp1;
      c.shard = 2;
      c.sequence = sequence;
      const Schedule schedule = plan(plain_llama(o), c);
      const Trace expected = simulated(schedule);
      ASSERT_EQ(expected.reuse.size(), 2u);
      EXPECT_FALSE(expected.reuse[0].segments.empty());
      for (const StreamMode mode : {StreamMode::kInline, StreamMode::kThreads}) {
        RunOptions options;
        options.mode = mode;
        options.reuse = expected.reuse;
        EXPECT_EQ(memory_of(run(schedule, options).trace), memory_of(expected));
      }
    }
  }
}

// What is predicted decides, not what has happened: without any block said to be free, the run
// needs more.
TEST(ExecutedEqualsSimulated, GivenAnswersDecideAboutReuse) {
  PlainModelOptions o;
  o.layers = 4;
  o.hidden = 256;
  o.vocabulary = 100;
  ParallelConfig c;
  c.framework = FrameworkKind::kFsdp1;
  c.shard = 2;
  c.sequence = 16;
  const Schedule schedule = plan(plain_llama(o), c);
  RunOptions options;
  options.mode = StreamMode::kInline;
  const Trace at_once = run(schedule, options).trace;
  options.reuse = {{0, std::vector<std::vector<bool>>(3, std::vector<bool>(100'000, false))}};
  const Trace never = run(schedule, options).trace;
  EXPECT_GT(memory_of(never).begin()->second.second, memory_of(at_once).begin()->second.second);
}

}  // namespace
}  // namespace foreshard
