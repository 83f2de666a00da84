// What must hold for every plan, on random models and options: bytes are conserved, gradients are
// reduced once, nothing is freed twice, more tokens need no less memory, sharding raises persistent
// memory by padding at most.

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

std::int64_t rounded(std::int64_t bytes) { return (bytes + 511) / 512 * 512; }

struct RandomJob {
  PlainModelOptions options;
  bool gpt2 = false;
  ParallelConfig config;
  Model model() const { return gpt2 ? plain_gpt2(options) : plain_llama(options); }
};

RandomJob random_job(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&](std::initializer_list<std::int64_t> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(random() % values.size()));
  };
  RandomJob job;
  job.gpt2 = random() % 3 == 0;
  PlainModelOptions& o = job.options;
  o.layers = pick({1, 2, 3, 5});
  o.heads = pick({2, 4, 6});
  o.hidden = o.heads * pick({8, 16, 24, 40});
  o.kv_heads = job.gpt2 ? o.heads : pick({1, 2}) * (o.heads / 2);
  o.ffn = pick({100, 256, 384});
  o.vocabulary = pick({97, 512, 1003});
  o.max_sequence = 64;
  o.tied = job.gpt2;
  ParallelConfig& c = job.config;
  c.shard = pick({1, 2, 3, 4, 7, 8});
  c.replicate = pick({1, 1, 2});
  c.micro_batch = pick({1, 2, 3});
  c.sequence = pick({16, 40, 64});
  c.accumulate = pick({1, 1, 2, 3});
  c.sync_each_micro_batch = random() % 2 == 0;
  c.wrap.root_split = random() % 2 == 0;
  if (random() % 3 == 0) c.wrap.kind = WrapPolicy::Kind::kEveryK, c.wrap.every = 2;
  if (random() % 3 == 0) c.reshard = Reshard::no();
  c.checkpoint = random() % 2 == 0 ? CheckpointKind::kNone : CheckpointKind::kFull;
  c.optimizer = random() % 2 == 0 ? OptimizerKind::kAdamWFused : OptimizerKind::kAdamWForeach;
  c.clip = random() % 2 == 0;
  if (random() % 4 == 0) c.precision.param.reset();
  if (random() % 4 == 0) c.precision.reduce = DType::kBFloat16;
  return job;
}

Schedule planned(const RandomJob& job) {
  PlanOptions o;
  o.executable = false;
  o.steps = 2;
  o.ranks = {0};
  return plan(job.model(), job.config, o);
}

/// Bytes of live device buffers after each instruction; fails on a buffer freed or allocated twice.
struct Walk {
  std::int64_t peak = 0, end = 0;
};
Walk walk(const RankProgram& p) {
  std::vector<std::uint8_t> live(p.buffers.size(), 0);
  Walk w;
  std::int64_t now = 0;
  for (const Instruction& i : p.instructions) {
    if (i.kind != InstructionKind::kAlloc && i.kind != InstructionKind::kFree) continue;
    const bool alloc = i.kind == InstructionKind::kAlloc;
    EXPECT_EQ(live[i.id], alloc ? 0 : 1)
        << "buffer " << i.id << (alloc ? " is allocated twice" : " is freed twice or never was");
    live[i.id] = alloc ? 1 : 0;
    if (p.buffers[i.id].space != MemorySpace::kDevice) continue;
    now += (alloc ? 1 : -1) * rounded(p.buffers[i.id].bytes.value);
    w.peak = std::max(w.peak, now);
  }
  w.end = now;
  return w;
}

class RandomPlans : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(RandomPlans, GatheredBytesAreThePaddedUnits) {
  const RandomJob job = random_job(GetParam());
  const Schedule s = planned(job);
  const RankProgram& p = s.programs[0];
  for (const Collective& c : p.collectives) {
    if (c.kind != CollectiveKind::kAllGather) continue;
    const ShardUnit& u = p.units.at(c.unit.value);
    EXPECT_EQ(c.bytes.value, u.padded_numel.value * size_of(c.dtype)) << u.name;
    EXPECT_GE(u.padded_numel.value, u.numel.value);
    EXPECT_EQ(u.padded_numel.value, u.shard_numel.value * job.config.shard);
  }
}

TEST_P(RandomPlans, EveryGradientIsReducedOncePerSync) {
  const RandomJob job = random_job(GetParam());
  const Schedule s = planned(job);
  const RankProgram& p = s.programs[0];
  const std::int64_t syncs = job.config.sync_each_micro_batch ? job.config.accumulate : 1;
  for (const Segment& step : p.steps) {
    std::map<std::uint32_t, std::int64_t> reduced;
    for (std::uint32_t i = step.begin; i < step.end; ++i) {
      if (p.instructions[i].kind != InstructionKind::kCollective) continue;
      const Collective& c = p.collectives[p.instructions[i].id];
      if (c.kind != CollectiveKind::kReduceScatter) continue;
      const ShardUnit& u = p.units.at(c.unit.value);
      EXPECT_EQ(c.bytes.value, u.padded_numel.value * size_of(c.dtype)) << u.name;
      ++reduced[c.unit.value];
    }
    if (job.config.shard == 1) continue;  // One rank: copies in place of the collective.
    for (std::uint32_t u = 0; u < p.units.size(); ++u) {
      if (p.units[u].numel.value > 0) {
        EXPECT_EQ(reduced[u], syncs) << p.units[u].name;
      }
    }
  }
}

TEST_P(RandomPlans, NothingIsFreedTwice) { walk(planned(random_job(GetParam())).programs[0]); }

TEST_P(RandomPlans, MoreTokensNeedNoLessMemory) {
  RandomJob job = random_job(GetParam());
  const std::int64_t before = walk(planned(job).programs[0]).peak;
  ++job.config.micro_batch;
  EXPECT_GE(walk(planned(job).programs[0]).peak, before);
}

TEST_P(RandomPlans, ShardingRaisesPersistentMemoryByPaddingAtMost) {
  RandomJob job = random_job(GetParam());
  const Schedule sharded = planned(job);
  const std::int64_t after = walk(sharded.programs[0]).end;
  job.config.shard = job.config.replicate = 1;
  const std::int64_t whole = walk(planned(job).programs[0]).end;
  // A row more for each of a parameter's tensors (parameter, two moments; a gradient is gone by
  // then), rounded up.
  std::int64_t padding = 0;
  for (const ParameterDef& d : job.model().parameters) {
    const std::int64_t row =
        d.shape.empty() ? 1 : d.numel() / std::max<std::int64_t>(1, d.shape[0]);
    padding += 3 * rounded(row * 4) + 3 * 512;
  }
  EXPECT_LE(after, whole + padding);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPlans, ::testing::Range<std::uint32_t>(1, 41));

}  // namespace
}  // namespace foreshard
