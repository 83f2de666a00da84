// Data parallelism with a sharded optimizer: collectives, bytes and fp32 parts by hand.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "core/error.h"
#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

// Hidden 64, 2 heads, ffn 128, 256 words, 2 layers: 9 tensors a block, embedding, norm and head: 21
// tensors. Elements: 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 2 * 256 * 64 + 64 = 115,008.
constexpr std::int64_t kTensors = 21,
                       kElements = 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 2 * 256 * 64 + 64;

ParallelConfig config(std::int64_t shard, std::int64_t replicate) {
  ParallelConfig c;
  c.framework = FrameworkKind::kShardedOptimizer;
  c.model_dtype = DType::kBFloat16;
  c.shard = shard;
  c.replicate = replicate;
  c.sequence = 32;
  c.accumulate = 3;
  c.sync_each_micro_batch = false;
  return c;
}

Schedule planned(const ParallelConfig& c) {
  PlainModelOptions o;
  o.layers = 2;
  o.hidden = 64;
  o.heads = 2;
  o.ffn = 128;
  o.vocabulary = 256;
  o.dtype = DType::kBFloat16;
  PlanOptions options;
  options.steps = 1;
  options.executable = !c.sharded_optimizer.owners_broadcast && !c.sharded_optimizer.gather_lists;
  return plan(plain_llama(o), c, options);
}

struct Traffic {
  int count = 0;
  std::int64_t bytes = 0;
};

std::map<CollectiveKind, Traffic> traffic(const Schedule& s) {
  std::map<CollectiveKind, Traffic> t;
  for (const Collective& c : s.programs[0].collectives) {
    ++t[c.kind].count;
    t[c.kind].bytes += c.bytes.value;
  }
  return t;
}

// Gradients are reduced once a step in fp32, parameters gathered in 16 bits; the norm's scalar is
// all-reduced.
TEST(ShardedOptimizer, ScattersFloat32SumsAndGathersParameters) {
  ParallelConfig c = config(4, 1);
  c.sharded_optimizer.accumulate_in_float32 = c.sharded_optimizer.one_collective_per_tensor = true;
  c.sharded_optimizer.reduce_scatter = true;
  std::map<CollectiveKind, Traffic> t = traffic(planned(c));
  EXPECT_EQ(t[CollectiveKind::kReduceScatter].count, kTensors);
  EXPECT_EQ(t[CollectiveKind::kReduceScatter].bytes, 4 * kElements);
  EXPECT_EQ(t[CollectiveKind::kAllGather].count, kTensors);
  EXPECT_EQ(t[CollectiveKind::kAllGather].bytes, 2 * kElements);
  EXPECT_EQ(t[CollectiveKind::kAllReduce].count, 2);  // And the barrier at the end of the step.
}

// nanotron's ZeRO-1: one all-reduce of the fp32 sums when backward is over and the barrier at the
// end (its clip_grad_norm works on whole sums: no rank needs another's norm); one gather of all
// parameters through lists, whose copies are one kernel for each part of each tensor and two for
// each rank, and one for the own parts.
TEST(ShardedOptimizer, ReducesAfterBackwardAndGathersThroughLists) {
  ParallelConfig c = config(4, 1);
  c.sharded_optimizer.accumulate_in_float32 = true;
  c.sharded_optimizer.reduce_after_backward = c.sharded_optimizer.gather_lists = true;
  const Schedule s = planned(c);
  std::map<CollectiveKind, Traffic> t = traffic(s);
  EXPECT_EQ(t[CollectiveKind::kAllReduce].count, 2);
  EXPECT_GE(t[CollectiveKind::kAllReduce].bytes, 4 * kElements);
  EXPECT_EQ(t[CollectiveKind::kAllGather].count, 1);
  EXPECT_EQ(t[CollectiveKind::kAllGather].bytes, 2 * kElements);
  EXPECT_EQ(t.count(CollectiveKind::kReduceScatter), 0u);
  int copies = 0;
  for (const Launch& l : s.programs[0].launches) {
    if (l.op == OpKind::kForeachCopy && l.kernels > 1) copies += l.kernels;
  }
  EXPECT_EQ(copies, 4 + 4 + 4 * kTensors);
}

TEST(ShardedOptimizer, SumsAreReducedOnlyWhereTheyExist) {
  ParallelConfig c = config(4, 1);
  c.sharded_optimizer.reduce_after_backward = true;
  EXPECT_THROW(planned(c), InputError);
}

// Buckets of 64 KiB of 16-bit gradients: a bucket is reduced when the next gradient would not fit,
// and backward waits for the one before when it starts the next, so that all but the last are
// waited for before backward ends.
TEST(ShardedOptimizer, BackwardWaitsForTheBucketBefore) {
  ParallelConfig c = config(4, 2);
  c.accumulate = 1;
  c.sharded_optimizer.bucket_mib = 0.0625;
  c.sharded_optimizer.owners_broadcast = true;
  const Schedule s = planned(c);
  const RankProgram& p = s.programs[0];
  std::vector<std::int64_t> order;  // Bytes of each bucket, -1 for a wait of the compute stream.
  for (const Instruction& in : p.instructions) {
    if (in.kind == InstructionKind::kCollective && p.collectives[in.id].bytes.value > 8 &&
        p.collectives[in.id].kind == CollectiveKind::kAllReduce)
      order.push_back(p.collectives[in.id].bytes.value);
    if (in.kind == InstructionKind::kWaitEvent && in.stream == 0 && !order.empty())
      order.push_back(-1);
  }
  // Head 32,768, norm 128 and one product 16,384 bytes; then two products, a norm, and wo, wv, wk
  // of 8,192 each: wq would be too much.
  ASSERT_GE(order.size(), 3u);
  EXPECT_EQ(order[0], 32768 + 128 + 16384);
  EXPECT_EQ(order[1], 2 * 16384 + 128 + 3 * 8192);
  EXPECT_EQ(order[2], -1);
}

// CUDA_DEVICE_MAX_CONNECTIONS=1: what is launched after a bucket's collective starts after it, and
// it after the bucket before. So the compute stream waits once for each bucket but the first, and
// for the last as ever. Buckets of 32 KiB: of head (32,768), the two products of 16,384 twice (norm
// and wo, wv, wk, wq of 8,192 between), embedding; see the order in
// BackwardWaitsForTheBucketBefore.
TEST(ShardedOptimizer, OneHardwareQueueHoldsBackwardUntilTheCollectiveStarts) {
  ParallelConfig c = config(1, 4);
  c.accumulate = 1;
  c.clip = false;
  c.sharded_optimizer.accumulate_in_float32 = c.sharded_optimizer.one_collective_per_tensor = true;
  c.sharded_optimizer.bucket_mib = 0.03125;
  const auto waits = [&](bool one_queue) {
    c.sharded_optimizer.one_hardware_queue = one_queue;
    const Schedule s = planned(c);
    const auto& all = s.programs[0].instructions;
    return std::count_if(all.begin(), all.end(), [](const Instruction& in) {
      return in.kind == InstructionKind::kWaitEvent && in.stream == 0;
    });
  };
  // Buckets close when they hold 32 KiB: head | norm, w2, w1 | w3, norm, wo, wv | wk, wq, w2 ...
  // and so on through the second block to the embedding: seven in all, six of which wait.
  EXPECT_EQ(waits(true) - waits(false), 6);
}

// Whole copies of the optimizer: gradients are all-reduced, nothing comes back.
TEST(ShardedOptimizer, WithoutShardsItIsDataParallel) {
  ParallelConfig c = config(1, 4);
  c.sharded_optimizer.accumulate_in_float32 = c.sharded_optimizer.one_collective_per_tensor = true;
  std::map<CollectiveKind, Traffic> t = traffic(planned(c));
  EXPECT_EQ(t[CollectiveKind::kAllReduce].bytes, 4 * kElements + 4);
  EXPECT_EQ(t.size(), 1u);
}

// DDP without gradient_as_bucket_view copies each gradient into its bucket in the backward that
// synchronises, and back when it is over; clipping scales all fp32 sums.
TEST(ShardedOptimizer, DdpCopiesGradientsIntoBucketsAndBack) {
  ParallelConfig c = config(1, 4);
  c.sharded_optimizer.accumulate_in_float32 = c.sharded_optimizer.one_collective_per_tensor = true;
  c.clip = true;
  const Schedule s = planned(c);
  const RankProgram& p = s.programs[0];
  const auto of_bucket = [&](std::uint32_t operand) {
    const TensorId t = p.operands[operand];
    return p.buffers[p.tensors[t.value].buffer.value].category == BufferCategory::kBucket;
  };
  std::int64_t in = 0, out = 0, scaled = 0;
  for (const Launch& l : p.launches) {
    if (l.op == OpKind::kCopy) {
      in += of_bucket(l.first_operand + 1) ? 1 : 0;
      out += of_bucket(l.first_operand) ? 1 : 0;
    }
    if (l.op == OpKind::kForeachMul && l.phase == Phase::kClip) scaled += l.outputs;
  }
  EXPECT_EQ(in, kTensors);
  EXPECT_EQ(out, kTensors);
  EXPECT_EQ(scaled, kTensors);
}

// One flat bucket of 16-bit gradients over all 8 ranks; each of 4 neighbours broadcasts what it
// owns.
TEST(ShardedOptimizer, OwnersBroadcastInsideTheirGroup) {
  ParallelConfig c = config(4, 2);
  c.sharded_optimizer.bucket_mib = 1024;
  c.sharded_optimizer.owners_broadcast = true;
  const Schedule s = planned(c);
  std::map<CollectiveKind, Traffic> t = traffic(s);
  EXPECT_EQ(t[CollectiveKind::kBroadcast].count, 4);
  EXPECT_EQ(t[CollectiveKind::kBroadcast].bytes, 2 * kElements);
  EXPECT_EQ(t[CollectiveKind::kAllReduce].count, 2);  // the bucket and the norm
  for (const Collective& x : s.programs[0].collectives) {
    const std::int64_t size = s.groups[x.group.value].size;
    EXPECT_EQ(size, x.kind == CollectiveKind::kAllReduce && x.bytes.value > 8 ? 8 : 4);
  }
}

// sqrt of the sum over the ranks of the squares: the scalar goes out as a sum, not an average.
TEST(ShardedOptimizer, TheNormIsSummedOverTheRanks) {
  const Schedule s = planned(config(4, 2));
  int scalars = 0;
  for (const Collective& c : s.programs[0].collectives) {
    if (c.kind != CollectiveKind::kAllReduce || c.bytes.value > 8) continue;
    ++scalars;
    EXPECT_EQ(c.op, ReduceOp::kSum);
    EXPECT_EQ(s.groups[c.group.value].size, 4);
  }
  EXPECT_EQ(scalars, 1);
}

TEST(ShardedOptimizer, EachRankUpdatesItsPartInFloat32) {
  ParallelConfig c = config(4, 1);
  std::int64_t masters = 0;
  const Schedule s = planned(c);
  for (const Buffer& b : s.programs[0].buffers) {
    masters += b.category == BufferCategory::kShardedParameter ? b.bytes.value : 0;
  }
  EXPECT_EQ(masters, 4 * kElements / 4);
}

// Three ranks divide no tensor here: c10d sends each tensor's parts in one NCCL group
// (ProcessGroupNCCL::allgather and reduce_scatter of uneven lists: startCoalescing, a broadcast or
// reduction from each rank, endCoalescing), lists of all tensors in one group, too. Owners that
// broadcast whole tensors (InternEvo) issue call by call.
TEST(ShardedOptimizer, UnevenPartsAreLaunchedTogether) {
  const auto parts = [](const ParallelConfig& c, CollectiveKind kind) {
    std::vector<Collective> out;
    const Schedule s = planned(c);
    for (const Collective& one : s.programs[0].collectives)
      if (one.kind == kind) out.push_back(one);
    return out;
  };
  ParallelConfig c = config(3, 1);
  c.sharded_optimizer.accumulate_in_float32 = c.sharded_optimizer.one_collective_per_tensor = true;
  c.sharded_optimizer.reduce_scatter = true;
  for (const auto& [kind, element] :
       {std::pair(CollectiveKind::kBroadcast, 2), std::pair(CollectiveKind::kReduce, 4)}) {
    const std::vector<Collective> found = parts(c, kind);
    ASSERT_EQ(found.size(), 3u * kTensors);
    std::int64_t whole = 0;
    for (std::size_t i = 0; i < found.size(); i += 3) {
      const Bytes together = found[i].bytes + found[i + 1].bytes + found[i + 2].bytes;
      for (std::size_t r = 0; r < 3; ++r) {
        EXPECT_EQ(found[i + r].root, static_cast<std::int32_t>(r));
        EXPECT_EQ(found[i + r].launched_together, together);
      }
      whole += together.value;
    }
    EXPECT_EQ(whole, element * kElements);
  }
  c.sharded_optimizer.gather_lists = true;
  std::vector<Collective> lists = parts(c, CollectiveKind::kBroadcast);
  ASSERT_EQ(lists.size(), 3u);
  for (const Collective& one : lists) EXPECT_EQ(one.launched_together.value, 2 * kElements);
  c.sharded_optimizer.gather_lists = false;
  c.sharded_optimizer.owners_broadcast = true;
  lists = parts(c, CollectiveKind::kBroadcast);
  ASSERT_EQ(lists.size(), 3u);
  for (const Collective& one : lists) EXPECT_EQ(one.launched_together.value, 0);
}

TEST(ShardedOptimizer, ScatteredGradientsHaveNoReplicas) {
  ParallelConfig c = config(4, 2);
  c.sharded_optimizer.reduce_scatter = true;
  EXPECT_THROW(planned(c), InputError);
}

// all_gather_coalesced on 1,024 ranks: one copy for each rank out of the collective (the sizes
// divide), one for each rank and tensor into the parameters; more than 16 bits count.
TEST(ShardedOptimizer, CountsEveryCopyOfItsLists) {
  PlainModelOptions o;
  o.layers = 8;
  o.hidden = o.vocabulary = 1024;
  o.heads = 2;
  o.ffn = 1024;
  o.dtype = DType::kBFloat16;
  ParallelConfig c = config(1024, 1);
  c.sharded_optimizer.accumulate_in_float32 = c.sharded_optimizer.one_collective_per_tensor = true;
  c.sharded_optimizer.gather_lists = true;
  PlanOptions options;
  options.steps = 1;
  options.executable = false;
  const Schedule s = plan(plain_llama(o), c, options);
  constexpr std::uint32_t kParts = 1024 * (8 * 9 + 3);  // 76,800
  std::uint32_t most = 0;
  for (const Launch& l : s.programs[0].launches)
    if (l.op == OpKind::kForeachCopy) most = std::max(most, l.kernels);
  EXPECT_EQ(most, kParts);
}

}  // namespace
}  // namespace foreshard
