// What FSDP1 issues to which stream, counted per step, against PyTorch 2.15 recorded on a stand-in
// for an H100 (golden/memory/traces/toy_fsdp1*, steps 0 and 2): the flat gradients are put together
// on the unshard stream, which waits for every parameter's gradient; the rate limiter syncs the
// host with 3 events in the first step and 7 in the third.

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "models/plain/plain_models.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

using Counts = std::map<std::string, int>;

void count(Counts& c, const RankProgram& p, const Instruction& op) {
  const auto stream = [&](StreamIndex s) { return p.streams[s].name; };
  switch (op.kind) {
    case InstructionKind::kWaitEvent:
      ++c["wait " + stream(op.stream)];
      break;
    case InstructionKind::kSyncEvent:
      ++c["sync event"];
      break;
    case InstructionKind::kSyncStream:  // The recording has the device's streams only, not the
                                        // CPU's own work.
      if (!p.streams[op.stream].on_host) ++c["sync stream " + stream(op.stream)];
      break;
    case InstructionKind::kCollective:
      ++c[std::string(name_of(p.collectives[op.id].kind)) + " " +
          stream(p.collectives[op.id].stream)];
      break;
    case InstructionKind::kCopy:
      if (p.copies[op.id].stream != 0) ++c["copy " + stream(p.copies[op.id].stream)];
      break;
    case InstructionKind::kLaunch: {
      const Launch& l = p.launches[op.id];
      if (l.stream != 0 && !p.streams[l.stream].on_host)
        c["kernel " + stream(l.stream)] += l.kernels;
      break;
    }
    default:
      break;
  }
}

/// Llama of 3 blocks, 256 wide, 1,002 tokens of vocabulary, on 4 ranks (hybrid: 2 x 4), 128 tokens.
Counts counts_of_step(std::size_t step, ParallelConfig c) {
  PlainModelOptions o;
  o.layers = 3;
  o.hidden = 256;
  o.heads = 4;
  o.kv_heads = 4;
  o.ffn = 512;
  o.vocabulary = 1002;
  o.max_sequence = 128;
  c.framework = FrameworkKind::kFsdp1;
  c.shard = 4;
  c.sequence = 128;
  c.wrap.root_split = false;
  c.clip = false;
  PlanOptions options;
  options.steps = 3;
  options.ranks = {0};
  const RankProgram p = plan(plain_llama(o), c, options).programs.at(0);
  Counts counts;
  for (std::uint32_t i = p.steps[step].begin; i < p.steps[step].end; ++i)
    count(counts, p, p.instructions[i]);
  return counts;
}

/// Common to the plain recordings.
Counts recorded(int limiter_syncs) {
  return {{"all-gather unshard", 7},    {"reduce-scatter post_backward", 4},
          {"kernel pre_unshard", 7},    {"kernel unshard", 4},
          {"kernel post_backward", 12}, {"sync event", limiter_syncs},
          {"sync stream compute", 2},   {"wait compute", 11},
          {"wait pre_unshard", 1},      {"wait unshard", 38},
          {"wait post_backward", 4}};
}

void expect_recorded(const ParallelConfig& config, Counts first, Counts third) {
  EXPECT_EQ(counts_of_step(0, config), first);
  EXPECT_EQ(counts_of_step(2, config), third);
}

TEST(Fsdp1Streams, FullShard) { expect_recorded({}, recorded(3), recorded(7)); }

TEST(Fsdp1Streams, OriginalParameters) {
  ParallelConfig c;
  c.fsdp1.use_orig_params = true;
  expect_recorded(c, recorded(3), recorded(7));
}

TEST(Fsdp1Streams, ForwardPrefetch) {
  ParallelConfig c;
  c.fsdp1.forward_prefetch = true;
  expect_recorded(c, recorded(3), recorded(7));
}

TEST(Fsdp1Streams, HybridReducesOnAStreamOfItsOwn) {
  ParallelConfig c;
  c.replicate = 2;
  c.fsdp1.strategy = Fsdp1Options::Strategy::kHybrid;
  const auto hybrid = [](Counts counts) {
    counts["all-reduce all_reduce"] = counts["kernel all_reduce"] = counts["wait all_reduce"] = 4;
    counts["kernel post_backward"] = 8;
    return counts;
  };
  expect_recorded(c, hybrid(recorded(3)), hybrid(recorded(7)));
}

TEST(Fsdp1Streams, OffloadCopiesBothWays) {
  ParallelConfig c;
  c.offload = OffloadKind::kParameters;
  const auto offload = [](Counts counts) {
    counts["copy pre_unshard"] = counts["kernel pre_unshard"] =
        8;  // The root in backward too (F1-S-3).
    counts["copy post_backward"] = 4;
    counts["sync stream compute"] = 3;
    counts["wait unshard"] = 39;
    return counts;
  };
  expect_recorded(c, offload(recorded(3)), offload(recorded(7)));
}

}  // namespace
}  // namespace foreshard
