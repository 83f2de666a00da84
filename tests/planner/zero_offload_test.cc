// ZeRO with offloaded states: what crosses PCIe in a step, where the optimizer runs, what is
// refused. Bytes by hand.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "models/plain/plain_models.h"
#include "schedules/planner/frameworks/framework.h"
#include "schedules/planner/planner.h"

namespace foreshard {
namespace {

Model tiny() {
  PlainModelOptions o;
  o.layers = 2;
  o.hidden = 64;
  o.heads = 4;
  o.kv_heads = 4;
  o.ffn = 128;
  o.vocabulary = 96;
  o.max_sequence = 16;
  return plain_llama(o);
}

ParallelConfig job(FrameworkKind framework, OffloadKind offload) {
  ParallelConfig c;
  c.framework = framework;
  c.shard = 4;
  c.sequence = 8;
  c.offload = offload;
  c.zero.pin_memory = true;
  c.zero.reduce_bucket_size = 20'000;
  c.zero.param_persistence_threshold = 0;
  return c;
}

struct HostTraffic {
  std::int64_t up = 0, down = 0;
};

/// Of the last of three steps (the first records the trace, the second compares it), without model
/// inputs, what the host reads, and norms.
HostTraffic host_traffic(const RankProgram& p) {
  HostTraffic t;
  for (std::uint32_t i = p.steps.back().begin; i < p.steps.back().end; ++i) {
    if (p.instructions[i].kind != InstructionKind::kCopy) continue;
    const Copy& c = p.copies[p.instructions[i].id];
    if (c.input >= 0 || !c.source.valid() || !c.destination.valid() || c.bytes.value <= 8) continue;
    (c.direction == CopyDirection::kHostToDevice ? t.up : t.down) += c.bytes.value;
  }
  return t;
}

RankProgram planned(const Model& m, const ParallelConfig& c) {
  PlanOptions options;
  options.steps = 3;
  return plan(m, c, options).programs[0];
}

/// Indices into Model::parameters in the order of model.parameters().
std::vector<std::size_t> order_of(const Model& m) {
  std::vector<std::size_t> order;
  for (const ParameterId id : parameter_order(m)) order.push_back(id.value);
  return order;
}

std::int64_t cpu_kernels(const RankProgram& p, OpKind op) {
  return std::count_if(p.launches.begin(), p.launches.end(),
                       [&](const Launch& l) { return l.op == op && p.streams[l.stream].on_host; });
}

/// Device memory while the model and its states are made, and what goes to host memory then.
struct Construction {
  std::int64_t peak = 0, end = 0, down = 0, up = 0;
};

Construction construction(const RankProgram& p) {
  Construction c;
  for (std::uint32_t i = p.init.begin; i < p.init.end; ++i) {
    const Instruction& n = p.instructions[i];
    if (n.kind == InstructionKind::kCopy) {
      const Copy& copy = p.copies[n.id];
      (copy.direction == CopyDirection::kHostToDevice ? c.up : c.down) += copy.bytes.value;
    }
    if (n.kind != InstructionKind::kAlloc && n.kind != InstructionKind::kFree) continue;
    const Buffer& b = p.buffers[n.id];
    if (b.space != MemorySpace::kDevice) continue;
    c.end += (n.kind == InstructionKind::kAlloc ? 1 : -1) * b.bytes.value;
    c.peak = std::max(c.peak, c.end);
  }
  return c;
}

/// clone().to("cpu", fp32) is a blocking copy: 16 bits cross and the CPU converts
/// (ATen/native/cuda/Copy.cu), in stages 1 and 2 of the partition's clone, in stage 3 of the parts.
TEST(ZeroOffload, MastersAreWidenedInHostMemory) {
  const Model m = tiny();
  const std::int64_t part = m.parameter_count().value / 4;
  for (const FrameworkKind kind : {FrameworkKind::kZero1, FrameworkKind::kZero2})
    EXPECT_EQ(construction(planned(m, job(kind, OffloadKind::kOptimizer))).down, 2 * part);
  // Stage 3 also moves its parts through host memory (defragment).
  EXPECT_EQ(construction(planned(m, job(FrameworkKind::kZero3, OffloadKind::kOptimizer))).down,
            2 * part + 2 * part);
}

/// All sizes divide by four ranks, so a partition is N / 4 without padding.
TEST(ZeroOffload, StageTwoSendsWideGradientsDownAndHalvesUp) {
  const Model m = tiny();
  const std::int64_t part = m.parameter_count().value / 4;
  ASSERT_EQ(part * 4, m.parameter_count().value);
  const RankProgram p = planned(m, job(FrameworkKind::kZero2, OffloadKind::kOptimizer));
  const HostTraffic t = host_traffic(p);
  EXPECT_EQ(t.down, 4 * part);                        // The own gradients in fp32.
  EXPECT_EQ(t.up, 2 * part);                          // The updated partition in bf16.
  EXPECT_EQ(cpu_kernels(p, OpKind::kFusedAdamW), 3);  // One in each step: DeepSpeedCPUAdam.
}

/// Stage 3 writes the 16-bit part into its host buffer, takes it up again and sends it down in fp32
/// (partition_grads).
TEST(ZeroOffload, StageThreeMovesGradientsThreeTimes) {
  const Model m = tiny();
  const std::int64_t part = m.parameter_count().value / 4;
  const HostTraffic t =
      host_traffic(planned(m, job(FrameworkKind::kZero3, OffloadKind::kOptimizer)));
  EXPECT_EQ(t.down, 2 * part + 4 * part);
  EXPECT_EQ(t.up, 2 * part + 2 * part);
}

/// With parameters in host memory every gather takes this rank's part up first; the update stays in
/// host memory.
TEST(ZeroOffload, ParametersComeUpWithEachGather) {
  const Model m = tiny();
  const std::int64_t part = m.parameter_count().value / 4;
  ParallelConfig c = job(FrameworkKind::kZero3, OffloadKind::kBoth);
  c.zero.max_reuse_distance = 0;
  c.zero.prefetch_bucket_size = 0;
  const HostTraffic t = host_traffic(planned(m, c));
  EXPECT_EQ(t.down, 2 * part + 4 * part);
  EXPECT_EQ(
      t.up,
      2 * part + 2 * 2 * part);  // Gradients once; every parameter for forward and for backward.
}

/// Masters, gradients, both moments (16 B), and the 16-bit buffers: host bytes of a rank.
TEST(ZeroOffload, HostMemoryHoldsSixteenBytesForEachOwnElement) {
  const Model m = tiny();
  const std::int64_t part = m.parameter_count().value / 4;
  const RankProgram p = planned(m, job(FrameworkKind::kZero2, OffloadKind::kOptimizer));
  std::int64_t live = 0;
  for (const Instruction& i : p.instructions) {
    if (i.kind != InstructionKind::kAlloc && i.kind != InstructionKind::kFree) continue;
    if (p.buffers[i.id].space == MemorySpace::kDevice) continue;
    live += (i.kind == InstructionKind::kAlloc ? 1 : -1) * p.buffers[i.id].bytes.value;
  }
  std::int64_t largest = 0;
  for (const ParameterDef& d : m.parameters) largest = std::max(largest, d.numel());
  EXPECT_EQ(live, 16 * part + 2 * part + 2 * largest);
}

/// stage3.py, subgroup_to_device: of n sub-groups the first int((1 - ratio) n) stay on the device.
/// Their masters, gradients and moments (16 B an element) leave host memory, and so do their fp32
/// gradients and 16-bit parts on the way; the 16-bit gradients still go down and up.
TEST(ZeroOffload, RatioKeepsTheFirstSubGroupsOnTheDevice) {
  const Model m = tiny();
  ParallelConfig c = job(FrameworkKind::kZero3, OffloadKind::kOptimizer);
  c.zero.sub_group_size = 1;  // Each parameter is a sub-group of its own.
  const std::vector<ParameterDef>& all = m.parameters;
  const std::int64_t groups = static_cast<std::int64_t>(all.size());
  const std::int64_t part = m.parameter_count().value / 4;
  for (const double ratio : {1.0, 0.75, 0.3, 0.0}) {
    c.zero.offload_ratio = ratio;
    const RankProgram p = planned(m, c);
    const std::int64_t on_device = static_cast<std::int64_t>((1 - ratio) * double(groups));
    EXPECT_EQ(cpu_kernels(p, OpKind::kFusedAdamW), 3 * (groups - on_device)) << ratio;
    std::int64_t kept = 0;  // Elements of sub-groups on the device, in the order of parameters.
    std::vector<std::int64_t> sizes;
    for (const ParameterView& v : p.parameters) sizes.push_back(v.elements);
    for (std::int64_t i = 0; i < on_device; ++i)
      kept += sizes[order_of(m)[static_cast<std::size_t>(i)]];
    const HostTraffic t = host_traffic(p);
    EXPECT_EQ(t.down, 2 * part + 4 * (part - kept)) << ratio;
    EXPECT_EQ(t.up, 2 * part + 2 * (part - kept)) << ratio;
  }
}

TEST(ZeroOffload, RatioNeedsAnOffloadedOptimizerOfStageThree) {
  ParallelConfig c = job(FrameworkKind::kZero2, OffloadKind::kOptimizer);
  c.zero.offload_ratio = 0.5;
  EXPECT_THROW(plan(tiny(), c, {}), InputError);
  c = job(FrameworkKind::kZero3, OffloadKind::kNone);
  c.zero.offload_ratio = 0.5;
  EXPECT_THROW(plan(tiny(), c, {}), InputError);
}

// ------------------------------------------------------------------------------------------------
// the engine's timers

struct HostWaits {
  std::int64_t events = 0, device = 0;
};

HostWaits waits_of_last_step(const ParallelConfig& c) {
  const RankProgram p = planned(tiny(), c);
  HostWaits w;
  for (std::uint32_t i = p.steps.back().begin; i < p.steps.back().end; ++i) {
    w.events += p.instructions[i].kind == InstructionKind::kSyncEvent;
    w.device += p.instructions[i].kind == InstructionKind::kSyncDevice;
  }
  return w;
}

/// ThroughputTimer: a wait at the start of each micro-batch and at its end, from the third step on.
TEST(ZeroTimers, ThroughputTimerWaitsTwiceForEachMicroBatch) {
  ParallelConfig c = job(FrameworkKind::kZero2, OffloadKind::kNone);
  c.accumulate = 3;
  const HostWaits with = waits_of_last_step(c);
  c.zero.throughput_timer = false;
  EXPECT_EQ(with.device - waits_of_last_step(c).device, 2 * 3);
}

/// wall_clock_breakdown: ten timers are read for the caller, five of them once more for the log of
/// the micro-batch, five for that of the step; those of the step hold an interval of each
/// micro-batch so far. The optimizer reads three of its own. Recorded with DeepSpeed 0.19.8.
TEST(ZeroTimers, WallClockBreakdownReadsEveryInterval) {
  ParallelConfig c = job(FrameworkKind::kZero2, OffloadKind::kNone);
  c.accumulate = 2;
  const HostWaits without = waits_of_last_step(c);
  c.zero.wall_clock_breakdown = true;
  const std::int64_t first = 5 + 5 + 5, second = 5 + 10 + 5 + 10;
  EXPECT_EQ(waits_of_last_step(c).events - without.events, first + second + 3);
}

TEST(ZeroOffload, CpuKernelsBlockTheHost) {
  const RankProgram p = planned(tiny(), job(FrameworkKind::kZero1, OffloadKind::kOptimizer));
  for (std::uint32_t i = 0; i + 1 < p.instructions.size(); ++i) {
    const Instruction& n = p.instructions[i];
    if (n.kind != InstructionKind::kLaunch || !p.streams[p.launches[n.id].stream].on_host) continue;
    EXPECT_EQ(p.instructions[i + 1].kind, InstructionKind::kSyncStream);
    EXPECT_EQ(p.instructions[i + 1].stream, p.launches[n.id].stream);
  }
}

/// FSDP2's CPU offload steps the optimizer on the CPU; it has no offload of the optimizer alone.
TEST(ZeroOffload, Fsdp2StepsOnTheCpuAndRefusesTheRest) {
  ParallelConfig c = job(FrameworkKind::kFsdp2, OffloadKind::kParameters);
  c.optimizer = OptimizerKind::kAdamWFused;
  const RankProgram p = planned(tiny(), c);
  EXPECT_EQ(cpu_kernels(p, OpKind::kFusedAdamW), 3);
  for (const Launch& l : p.launches) {
    if (l.op == OpKind::kFusedAdamW) {
      EXPECT_TRUE(p.streams[l.stream].on_host);
    }
  }
  for (const OffloadKind kind : {OffloadKind::kOptimizer, OffloadKind::kBoth}) {
    c.offload = kind;
    EXPECT_THROW(plan(tiny(), c, {}), InputError);
  }
  EXPECT_THROW(plan(tiny(), job(FrameworkKind::kZero2, OffloadKind::kParameters), {}), InputError);
  c = job(FrameworkKind::kDdp, OffloadKind::kOptimizer);
  c.replicate = c.shard;
  c.shard = 1;
  EXPECT_THROW(plan(tiny(), c, {}), InputError);
}

// DeepSpeed builds its BF16_Optimizer in stage 1 (engine.py, _do_optimizer_sanity_check); stage 2 and
// an offloaded optimizer keep ZeRO's own.
TEST(ZeroPlan, RefusesTheOptimizerThatIsNotZeros) {
  const auto wide = [](FrameworkKind kind, OffloadKind offload) {
    ParallelConfig c = job(kind, offload);
    c.precision.param = DType::kBFloat16;
    c.zero.grad_accum_dtype = DType::kFloat32;
    return c;
  };
  EXPECT_THROW(plan(tiny(), wide(FrameworkKind::kZero1, OffloadKind::kNone), {}), InputError);
  EXPECT_NO_THROW(plan(tiny(), wide(FrameworkKind::kZero2, OffloadKind::kNone), {}));
  EXPECT_NO_THROW(plan(tiny(), wide(FrameworkKind::kZero1, OffloadKind::kOptimizer), {}));
}

}  // namespace
}  // namespace foreshard
