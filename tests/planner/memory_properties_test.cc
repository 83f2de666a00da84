// What must hold for every plan, on random models and options: bytes are conserved, gradients are
// reduced once, nothing is freed twice, more tokens need no less memory, sharding raises persistent
// memory by padding at most. Spoilt plans show that each check can fail.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

std::int64_t rounded(std::int64_t bytes) { return (bytes + 511) / 512 * 512; }

struct RandomJob {
  PlainModelOptions options;
  bool gpt2 = false;
  std::int64_t frozen = 0;  ///< Parameters that are frozen: the first ones.
  ParallelConfig config;
  Model model() const {
    Model m = gpt2 ? plain_gpt2(options) : plain_llama(options);
    for (std::int64_t i = 0; i < frozen; ++i)
      m.parameters[static_cast<std::size_t>(i)].trainable = false;
    return m;
  }
  std::int64_t syncs() const { return config.sync_each_micro_batch ? config.accumulate : 1; }
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
  if (c.shard % 2 == 0 && random() % 4 == 0) c.reshard = Reshard::to_group(2);
  if (random() % 4 == 0) c.prefetch_forward = c.prefetch_backward = pick({0, 1, 2});
  if (random() % 5 == 0) c.offload = OffloadKind::kParameters;
  if (random() % 4 == 0) c.unshard_async = true;
  if (random() % 4 == 0) job.frozen = pick({1, 2, 9});
  return job;
}

Schedule planned(const RandomJob& job) {
  PlanOptions o;
  o.executable = false;
  o.steps = 2;
  o.ranks = {0};
  return plan(job.model(), job.config, o);
}

struct Walk {
  std::int64_t peak = 0, end = 0;  ///< Bytes of live device buffers.
  std::vector<std::string> problems;
};

/// Problems: buffers that are freed or allocated twice.
Walk walk(const RankProgram& p) {
  std::vector<std::uint8_t> live(p.buffers.size(), 0);
  Walk w;
  for (const Instruction& i : p.instructions) {
    if (i.kind != InstructionKind::kAlloc && i.kind != InstructionKind::kFree) continue;
    const bool alloc = i.kind == InstructionKind::kAlloc;
    if (live[i.id] != (alloc ? 0 : 1))
      w.problems.push_back(fmt::format("buffer {} is {} twice", i.id, alloc ? "made" : "freed"));
    live[i.id] = alloc ? 1 : 0;
    if (p.buffers[i.id].space != MemorySpace::kDevice) continue;
    w.end += (alloc ? 1 : -1) * rounded(p.buffers[i.id].bytes.value);
    w.peak = std::max(w.peak, w.end);
  }
  return w;
}

using Problems = std::vector<std::string>;

/// Gathers and reductions move a unit's padded elements, which its shards make up.
Problems bytes_problems(const RandomJob& job, const RankProgram& p) {
  Problems out;
  for (const ShardUnit& u : p.units) {
    if (u.padded_numel < u.numel || u.padded_numel.value != u.shard_numel.value * job.config.shard)
      out.push_back("shards of " + u.name);
  }
  for (const Collective& c : p.collectives) {
    if (c.kind != CollectiveKind::kAllGather && c.kind != CollectiveKind::kReduceScatter) continue;
    const ShardUnit& u = p.units.at(c.unit.value);
    const std::int64_t whole = u.padded_numel.value * size_of(c.dtype);
    // Frozen parameters are gathered, not reduced.
    const bool part = c.kind == CollectiveKind::kReduceScatter && job.frozen > 0;
    if (part ? c.bytes.value > whole : c.bytes.value != whole)
      out.push_back(fmt::format("{} moves {} of {} bytes", u.name, c.bytes.value, whole));
  }
  return out;
}

/// Collectives of a kind for each unit in a step.
std::map<std::string, std::int64_t> counted(const RankProgram& p, const Segment& step,
                                            CollectiveKind kind) {
  std::map<std::string, std::int64_t> n;
  for (std::uint32_t i = step.begin; i < step.end; ++i) {
    if (p.instructions[i].kind != InstructionKind::kCollective) continue;
    const Collective& c = p.collectives[p.instructions[i].id];
    if (c.kind == kind && c.unit.valid()) ++n[p.units.at(c.unit.value).name];
  }
  return n;
}

/// Every unit with trainable parameters is reduced over its shards, and over the copies, once for
/// each synchronised backward; a unit without is not.
Problems reduction_problems(const RandomJob& job, const RankProgram& p) {
  Problems out;
  const auto expect = [&](const Segment& step, CollectiveKind kind, std::int64_t ranks) {
    if (ranks == 1) return;  // Copies in place of the collective.
    const auto n = counted(p, step, kind);
    for (const ShardUnit& u : p.units) {
      const bool trains = std::any_of(p.parameters.begin(), p.parameters.end(), [&](const auto& v) {
        return v.trainable &&
               std::find(u.parameters.begin(), u.parameters.end(), v.name) != u.parameters.end();
      });
      const std::int64_t found = n.contains(u.name) ? n.at(u.name) : 0;
      if (found != (trains ? job.syncs() : 0))
        out.push_back(fmt::format("{} is reduced {} times", u.name, found));
    }
  };
  for (const Segment& step : p.steps) {
    expect(step, CollectiveKind::kReduceScatter, job.config.shard);
    expect(step, CollectiveKind::kAllReduce, job.config.replicate);
  }
  return out;
}

class RandomPlans : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(RandomPlans, BytesAreConserved) {
  const RandomJob job = random_job(GetParam());
  EXPECT_EQ(bytes_problems(job, planned(job).programs[0]), Problems());
}

TEST_P(RandomPlans, EveryGradientIsReducedOncePerSync) {
  const RandomJob job = random_job(GetParam());
  EXPECT_EQ(reduction_problems(job, planned(job).programs[0]), Problems());
}

TEST_P(RandomPlans, NothingIsFreedTwice) {
  EXPECT_EQ(walk(planned(random_job(GetParam())).programs[0]).problems, Problems());
}

/// Without shards: the buckets of a step hold every trainable element once for each sync.
TEST_P(RandomPlans, DdpReducesEveryElementOncePerSync) {
  RandomJob job = random_job(GetParam());
  ParallelConfig& c = job.config;
  c.framework = FrameworkKind::kDdp;
  c.replicate = std::max<std::int64_t>(2, c.shard * c.replicate);
  c.shard = 1;
  c.offload = OffloadKind::kNone;
  c.precision = {};
  c.clip = false;
  const Schedule s = planned(job);
  const RankProgram& p = s.programs[0];
  std::int64_t trainable = 0;
  for (const ParameterDef& d : job.model().parameters) trainable += d.trainable ? d.numel() : 0;
  for (const Segment& step : p.steps) {
    std::int64_t bytes = 0;
    for (std::uint32_t i = step.begin; i < step.end; ++i) {
      if (p.instructions[i].kind != InstructionKind::kCollective) continue;
      const Collective& collective = p.collectives[p.instructions[i].id];
      if (collective.kind == CollectiveKind::kAllReduce) bytes += collective.bytes.value;
    }
    EXPECT_EQ(bytes, 4 * trainable * job.syncs());
  }
  EXPECT_EQ(walk(p).problems, Problems());
}

/// One instruction or number changed: some check must say so.
TEST_P(RandomPlans, SpoiltPlansAreNoticed) {
  RandomJob job = random_job(GetParam());
  job.config.shard = std::max<std::int64_t>(job.config.shard, 2);
  job.frozen = 0;
  const RankProgram good = planned(job).programs[0];
  const auto nth = [&](RankProgram& p, const std::function<bool(const Instruction&)>& wanted) {
    std::vector<std::size_t> places;
    for (std::size_t i = p.steps[0].begin; i < p.steps[0].end; ++i)
      if (wanted(p.instructions[i])) places.push_back(i);
    return places.at(GetParam() % places.size());
  };
  const auto collective = [](const RankProgram& p, CollectiveKind kind) {
    return [&p, kind](const Instruction& i) {
      return i.kind == InstructionKind::kCollective && p.collectives[i.id].kind == kind;
    };
  };
  RankProgram p = good;
  const std::size_t reduction = nth(p, collective(p, CollectiveKind::kReduceScatter));
  p.instructions[reduction].kind = InstructionKind::kMark;
  EXPECT_NE(reduction_problems(job, p), Problems()) << "a reduction is missing";
  p = good;
  p.collectives[p.instructions[reduction].id].bytes += Bytes(512);
  EXPECT_NE(bytes_problems(job, p), Problems()) << "a reduction moves too much";
  p = good;
  p.collectives[p.instructions[nth(p, collective(p, CollectiveKind::kAllGather))].id].bytes +=
      Bytes(-2);
  EXPECT_NE(bytes_problems(job, p), Problems()) << "a gather moves too little";
  p = good;
  const auto freed = p.instructions.begin() +
                     static_cast<std::ptrdiff_t>(nth(
                         p, [](const Instruction& i) { return i.kind == InstructionKind::kFree; }));
  const Instruction again = *freed;
  p.instructions.insert(freed, again);
  EXPECT_NE(walk(p).problems, Problems()) << "a buffer is freed twice";
}

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
  job.config.reshard = {};
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
