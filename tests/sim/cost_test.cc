// Kernel and host costs against published measurements and hand calculations.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "sim/cost/gpu_spread.h"
#include "sim/cost/host_cost.h"
#include "sim/cost/kernel_cost.h"
#include "sim/hardware_cost.h"
#include "sim/provenance.h"
#include "toy.h"

namespace foreshard {
namespace {

using Direction = KernelCostModel::Direction;

/// With round training ceilings, so that a new calibration does not move the values worked out
/// below.
KernelCostModel kernels_of(const char* name) {
  GpuProfile gpu = load_gpu(name);
  gpu.efficiency["matmul_training"].value = 0.774;
  gpu.efficiency["memory_bound"].value = 0.816;
  return KernelCostModel(gpu, CostParameters{});
}

// A100: 2 * 8192^3 = 1.0995e12 flops at 312e12 * 0.774 = 241.5e12; tiles of 256 x 128: 2048 blocks
// in 19 waves of 108: q = 0.998, q^0.64 = 0.9987; 1 + 145 / 8192 = 1.0177: 1.0995e12 / 241.5e12 /
// 0.9987 * 1.0177 = 4.640 ms.
TEST(Matmul, LargeSquare) {
  EXPECT_NEAR(
      to_seconds(kernels_of("a100-80").matmul(8192, 8192, 8192, 1, DType::kBFloat16, false)),
      4.640e-3, 0.01e-3);
}

// One block more than the multiprocessors hold starts a second wave: 108 tiles of 256 x 128 against
// 109 (m = 109 * 256).
TEST(Matmul, WaveQuantisation) {
  const KernelCostModel k = kernels_of("a100-80");
  const double full = to_seconds(k.matmul(108 * 256, 128, 4096, 1, DType::kBFloat16, false));
  const double more = to_seconds(k.matmul(109 * 256, 128, 4096, 1, DType::kBFloat16, false));
  EXPECT_GT(more, 1.15 * full);
}

// cuBLASLt with random data on A100: 119 TFLOP/s at 1k, 222 at 2k, 254 at 8k (ratios to 8k: 0.47
// and 0.87). The model's ratios, launch time included, within a fifth.
TEST(Matmul, SmallSquaresAreSlower) {
  const KernelCostModel k = kernels_of("a100-80");
  const auto rate = [&](std::int64_t n) {
    return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) /
           to_seconds(k.matmul(n, n, n, 1, DType::kBFloat16, false));
  };
  EXPECT_NEAR(rate(1024) / rate(8192), 119.0 / 254, 0.2 * 119.0 / 254);
  EXPECT_NEAR(rate(2048) / rate(8192), 222.0 / 254, 0.2 * 222.0 / 254);
}

// A product with one row is bound by reading the matrix: 8192 * 8192 * 2 B / (0.816 * 2039 GB/s)
// = 80.7 us.
TEST(Matmul, ThinProductsAreBoundByMemory) {
  const double t =
      to_seconds(kernels_of("a100-80").matmul(1, 8192, 8192, 1, DType::kBFloat16, false));
  EXPECT_GT(t, 80e-6);
  EXPECT_LT(t, 140e-6);
}

TEST(Matmul, UnsupportedDtypeIsAnError) {
  EXPECT_THROW(kernels_of("a100-80").matmul(64, 64, 64, 1, DType::kFloat8E4M3, false), InputError);
}

// H100, 8-bit: 2 * 8192^3 / (1979e12 * 0.774 * 0.89) = 806.5 us, (8192 / 256) * (8192 / 128) = 2048
// tiles in 16 waves of 132: q = 0.9697, q^0.28 = 0.9914; 1 + 165 / 8192 = 1.0201: 829.9 us and 5.5
// us of launch. With a scale for each row 1 / 0.8 of that.
TEST(Matmul, EightBits) {
  const KernelCostModel k = kernels_of("h100-80");
  const double scaled = to_seconds(k.matmul(8192, 8192, 8192, 1, DType::kFloat8E4M3, false));
  EXPECT_NEAR(scaled, 835.4e-6, 3e-6);
  EXPECT_NEAR(to_seconds(k.matmul(8192, 8192, 8192, 1, DType::kFloat8E4M3, false, true)),
              829.9e-6 / 0.8 + 5.5e-6, 4e-6);
}

// The weight gradient of a linear layer is a little slower (0.954 on 183 A100 shapes, 0.96 in the
// profile).
// Published fp32 products of 4096^3 on CUDA cores (2 * 4096^3 = 137.4 GFLOP): cuBLAS 23.25 TFLOP/s on
// RTX A6000 (5.91 ms), 21.9 of 29.15 on RTX 4070, whose chip the RTX 4090 shares (82.6 TFLOP/s: 2.21
// ms). Of V100 and others nothing was measured: 0.85 of 15.7 TFLOP/s, 10.3 ms.
TEST(Matmul, SinglePrecisionWhereLanesAlsoDoIntegers) {
  const auto ms = [](const char* gpu) {
    return to_seconds(kernels_of(gpu).matmul(4096, 4096, 4096, 1, DType::kFloat32, false)) *
           1e3;
  };
  EXPECT_NEAR(ms("rtx-a6000"), 5.91, 0.15 * 5.91);
  EXPECT_NEAR(ms("rtx4090"), 2.21, 0.15 * 2.21);
  EXPECT_NEAR(ms("v100-32"), 10.3, 0.15 * 10.3);
}

TEST(Matmul, WeightGradient) {
  const KernelCostModel k = kernels_of("a100-80");
  const double forward = to_seconds(k.matmul(8192, 8192, 8192, 1, DType::kBFloat16, false));
  EXPECT_NEAR(to_seconds(k.matmul(8192, 8192, 8192, 1, DType::kBFloat16, true)) / forward, 1 / 0.96,
              1e-3);
}

// FlashAttention-2 on H100, forward, causal, head size 128, 16k tokens in all (figures of arXiv
// 2407.08608).
TEST(Attention, HopperForwardByLength) {
  const KernelCostModel k = kernels_of("h100-80");
  const double published[][2] = {{512, 191},  {1024, 260}, {2048, 298},
                                 {4096, 319}, {8192, 333}, {16384, 335}};
  for (const auto& [s, tflops] : published) {
    const auto length = static_cast<std::int64_t>(s);
    const std::int64_t batch = 16384 / length, heads = 16;
    const Flops flops(2 * batch * heads * length * length * 128);
    const Time t = k.attention({batch, heads, length, length, 128, 1}, flops, Direction::kForward,
                               AttentionKernel::kFlash2);
    const double rate = static_cast<double>(flops.value) / to_seconds(t) / 1e12;
    EXPECT_NEAR(rate, tflops, 0.12 * tflops) << length;
  }
}

// A100, batch 1, 4096 tokens, 64 heads: 185 forward, 157 backward (SimuMax tables); 4 heads reach
// 0.43 and 0.67 of that.
TEST(Attention, FewBlocksAreSlower) {
  const KernelCostModel k = kernels_of("a100-80");
  const auto rate = [&](std::int64_t heads, Direction d) {
    const Flops flops((d == Direction::kForward ? 2 : 5) * heads * 4096 * 4096 * 128);
    return static_cast<double>(flops.value) /
           to_seconds(
               k.attention({1, heads, 4096, 4096, 128, 1}, flops, d, AttentionKernel::kFlash2)) /
           1e12;
  };
  EXPECT_NEAR(rate(64, Direction::kForward), 185, 0.06 * 185);
  EXPECT_NEAR(rate(64, Direction::kBackward), 157, 0.08 * 157);
  EXPECT_NEAR(rate(4, Direction::kForward) / rate(64, Direction::kForward), 0.43, 0.06);
  EXPECT_NEAR(rate(4, Direction::kBackward) / rate(64, Direction::kBackward), 0.67, 0.06);
}

// 1 GB on A100: 1e9 / (0.816 * 2039e9) = 601 us, and 3 us for the launch.
TEST(MemoryBound, BytesOverBandwidthPlusLaunch) {
  EXPECT_NEAR(to_seconds(kernels_of("a100-80").memory_bound(Bytes(1'000'000'000), 1)), 604e-6,
              1e-6);
  EXPECT_NEAR(to_seconds(kernels_of("a100-80").memory_bound(Bytes(0), 4)), 12e-6, 0.1e-6);
}

// Expected maxima of normal numbers from tables of order statistics.
TEST(Slowest, ExpectedMaximum) {
  EXPECT_NEAR(expected_maximum(1), 0, 1e-9);
  EXPECT_NEAR(expected_maximum(2), 0.5642, 1e-3);
  EXPECT_NEAR(expected_maximum(8), 1.4236, 1e-3);
  EXPECT_NEAR(expected_maximum(100), 2.5076, 1e-3);
}

// Expected order statistics: of two +-0.5642 (1 / sqrt(pi)); of five 1.1630 and 0.4950 (tables).
TEST(GpuSpread, ATypicalSetEndsAtTheSlowest) {
  EXPECT_EQ(typical_gpus(0.1, 1), std::vector<double>{1});
  std::vector<double> two = typical_gpus(0.1, 2);
  std::sort(two.begin(), two.end());
  EXPECT_NEAR(two[0], (1 + 0.1 * (-0.5642 - 1.4236)) / (1 + 0.1 * (0.5642 - 1.4236)), 1e-4);
  EXPECT_DOUBLE_EQ(two[1], 1);
  std::vector<double> five = typical_gpus(0.1, 5);
  const double slowest = slowest_gpu_factor(0.1, 5);
  EXPECT_NEAR(slowest, 1 + 0.1 * (1.1630 - 1.4236), 1e-4);
  std::sort(five.begin(), five.end());
  const double expected[] = {-1.1630, -0.4950, 0, 0.4950, 1.1630};
  for (int i = 0; i < 5; ++i)
    EXPECT_NEAR(five[i] * slowest, 1 + 0.1 * (expected[i] - 1.4236), 5e-4) << i;
  const std::vector<double> many = typical_gpus(0.03, 512), none = typical_gpus(0, 512);
  EXPECT_EQ(many, typical_gpus(0.03, 512));  // No seed.
  EXPECT_FALSE(std::is_sorted(many.begin(), many.end()));
  EXPECT_EQ(*std::max_element(many.begin(), many.end()), 1);
  EXPECT_EQ(none, std::vector<double>(512, 1.0));
}

// A Llama block in eager PyTorch, forward: 28 launches, 157 us of host time measured on the
// reference CPU, of which about 17 us are views, which launch nothing.
TEST(Host, EagerBlockForward) {
  std::vector<OpKind> ops(7, OpKind::kMatmul);
  for (int i = 0; i < 2; ++i) {
    ops.insert(ops.end(), {OpKind::kRmsNorm, OpKind::kAdd});
    ops.insert(ops.end(), {OpKind::kMul, OpKind::kMul, OpKind::kMul, OpKind::kMul, OpKind::kSub,
                           OpKind::kAdd, OpKind::kCat});
  }
  ops.insert(ops.end(), {OpKind::kFlashAttention, OpKind::kSilu, OpKind::kMul});
  ASSERT_EQ(ops.size(), 28u);
  HostParameters p;
  p.launch_us = 0;
  const HostCostModel host(p, 1);
  Time total(0);
  for (const OpKind op : ops) {
    Launch l;
    l.op = op;
    l.phase = Phase::kForward;
    total += host.launch(l);
  }
  EXPECT_NEAR(to_seconds(total) * 1e6, 157 - 17, 0.15 * 140);
}

TEST(Host, CpuFactorScalesDispatchNotDriver) {
  HostParameters p;
  Launch l;
  l.op = OpKind::kMatmul;
  l.phase = Phase::kForward;
  const Time one = HostCostModel(p, 1).launch(l), two = HostCostModel(p, 2).launch(l);
  EXPECT_EQ(two - one, one - from_seconds(p.launch_us * 1e-6));
}

Schedule one_gather(std::int64_t world, std::int64_t bytes) {
  toy::ToyProgram p;
  p.gather(bytes);
  return toy::schedule_of(p, world);
}

// 1 GB gathered by 8 H100: rings of 12 x 30 GB/s, 8/7 of that for the whole: 1e9 * 7/8 / 360e9
// = 2.43 ms, within a fifth.
TEST(Hardware, GatherOverNvLink) {
  const SimulationResult r =
      simulate(one_gather(8, 1'000'000'000), make_cluster(load_hardware("dgx-h100"), 8));
  EXPECT_NEAR(to_seconds(r.step_time), 2.43e-3, 0.2 * 2.43e-3);
  ASSERT_EQ(r.communication.size(), 1u);
  EXPECT_EQ(r.communication[0].bottleneck, Link::kNvLink);
}

// The same on two nodes of 8 x 400 Gb/s: at most 400 GB/s through the NICs: at least 1e9 * 15/16 /
// 400e9 = 2.34 ms.
TEST(Hardware, GatherOverTheNetwork) {
  const SimulationResult r =
      simulate(one_gather(16, 1'000'000'000), make_cluster(load_hardware("dgx-h100"), 16));
  EXPECT_GT(to_seconds(r.step_time), 2.34e-3);
  EXPECT_LT(to_seconds(r.step_time), 2 * 2.34e-3);
}

// A collective over several nodes holds two multiprocessors for each NIC, at most 16, of the 24 of
// a full NVLink ring, whether its NICs are fast or slow: 16/24 and 2/24 of the slowdown.
TEST(Hardware, NetworkCollectivesSlowKernelsByTheirBlocks) {
  Collective c;
  c.kind = CollectiveKind::kAllGather;
  c.bytes = Bytes(1'000'000'000);
  std::vector<std::int64_t> ranks(16);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto share = [&](const char* name) {
    HardwareProfile machine = load_hardware(name);
    machine.gpu.efficiency["overlap_slowdown"].value = 0.24;
    return make_cost_model(make_cluster(machine, 16))->collective(c, ranks).interference / 0.24;
  };
  EXPECT_NEAR(share("dgx-a100-80@8x100g"), 16.0 / 24, 1e-12);
  EXPECT_NEAR(share("dgx-a100-80@8x50g"), 16.0 / 24, 1e-12);
  EXPECT_NEAR(share("dgx-a100-80@1x100g"), 2.0 / 24, 1e-12);
}

// Pageable memory passes a staging buffer that one thread fills at 6.7 GB/s: 2 GB take 10 us +
// 0.2985 s. Two GPUs share a PCIe switch: page-locked memory goes at 31.5 x 0.82 / 2 GB/s, 155 ms.
TEST(Hardware, PageableCopiesAreSlower) {
  const auto cost = make_cost_model(make_cluster(load_hardware("dgx-a100-80"), 8));
  Copy c;
  c.bytes = Bytes(2'000'000'000);
  const RankProgram none;
  EXPECT_NEAR(to_seconds(cost->copy(none, c).device), 0.1549, 1e-3);
  c.pageable = true;
  EXPECT_NEAR(to_seconds(cost->copy(none, c).device), 0.29852, 1e-4);
}

TEST(Hardware, MoreRanksThanGpus) {
  EXPECT_THROW(simulate(one_gather(16, 1000), make_cluster(load_hardware("dgx-h100"), 8)),
               InputError);
}

// A gather on one node rests on NVLink and interference, not on the network, nor on products that
// nobody multiplies.
TEST(Hardware, NumbersUsed) {
  const auto has = [](const std::vector<UsedNumber>& all, const std::string& part) {
    return std::any_of(all.begin(), all.end(), [&](const UsedNumber& n) {
      EXPECT_FALSE(n.source.empty()) << n.quantity;
      return n.quantity.find(part) != std::string::npos;
    });
  };
  const auto one = numbers_used(one_gather(8, 1000), make_cluster(load_hardware("dgx-h100"), 8));
  EXPECT_TRUE(has(one, "nvlink"));
  EXPECT_TRUE(has(one, "overlap_slowdown"));
  EXPECT_FALSE(has(one, "network."));
  EXPECT_FALSE(has(one, "matmul"));
  EXPECT_TRUE(has(numbers_used(one_gather(16, 1000), make_cluster(load_hardware("dgx-h100"), 16)),
                  "network.nic_rate"));
}

Schedule one_attention(OpKind op, std::int64_t head_size) {
  Schedule s;
  s.programs.resize(1);
  Launch l;
  l.op = op;
  l.dtype = DType::kBFloat16;
  l.dims = {2, 16, 2048, 2048, head_size, 1};
  l.flops = Flops(1'000'000'000'000);
  s.programs[0].launches.push_back(l);
  return s;
}

// What is said to be used is what is used: doubling a number of the GPU changes the time of an
// attention kernel if and only if the provenance names it. Every GPU, kernel and head size.
TEST(Hardware, AttentionRestsOnTheNumbersThatProvenanceNames) {
  for (const std::string& name : gpu_names()) {
    const HardwareProfile machine = load_hardware("1x-" + name);
    for (const AttentionKernel kernel : {AttentionKernel::kFlash2, AttentionKernel::kFlash1,
                                         AttentionKernel::kFlash3, AttentionKernel::kCudnn}) {
      CostParameters p;
      p.attention.kernel = kernel;
      for (const OpKind op : {OpKind::kFlashAttention, OpKind::kFlashAttentionBackward,
                              OpKind::kEfficientAttention, OpKind::kEfficientAttentionBackward}) {
        for (const std::int64_t head : {32, 64, 96, 128, 256}) {
          const Schedule s = one_attention(op, head);
          std::set<std::string> named;
          for (const UsedNumber& n : numbers_used(s, make_cluster(machine, 1), p))
            named.insert(n.quantity);
          const Launch& launch = s.programs[0].launches[0];
          const Time before = KernelCostModel(machine.gpu, p).time(launch);
          for (const auto& [key, fact] : machine.gpu.efficiency) {
            if (!key.starts_with("attention_")) continue;
            GpuProfile other = machine.gpu;
            other.efficiency[key].value *= 2;
            EXPECT_EQ(KernelCostModel(other, p).time(launch) != before,
                      named.contains("gpu.efficiency." + key))
                << name << " " << name_of(op) << " " << head << " " << key;
          }
        }
      }
    }
  }
}

// A run on 12 GPUs of two machines measured a slow network: its collectives take long, as on 16.
TEST(Hardware, MeasuredBandwidthCountsOnAPartlyUsedMachine) {
  for (const int gpus : {12, 16}) {
    const Cluster cluster = make_cluster(load_hardware("dgx-h100"), gpus);
    const Schedule s = one_gather(gpus, 256'000'000);
    const Time modelled = simulate(s, cluster).step_time;
    CostParameters parameters;
    parameters.links.measured.all_gather = 1e9;  // Far below any network of the catalogue.
    EXPECT_GT(to_seconds(simulate(s, cluster, {}, parameters).step_time), 5 * to_seconds(modelled))
        << gpus;
  }
}

// HSDP's two kinds of groups on two nodes: the all-reduce of one rank on each node has its own NIC
// (50 GB/s), whatever the other seven replica groups do: 100 MB, 2 * 1/2 * 100e6 / 50e9 = 2 ms at
// least.
TEST(Hardware, ReplicaGroupsShareTheNics) {
  toy::ToyProgram p;
  p.collective(CollectiveKind::kAllReduce, 100'000'000, 1);
  Schedule s = toy::schedule_of(p, 16);
  s.groups = {{"replicate", 2, 8}};
  const SimulationResult r = simulate(s, make_cluster(load_hardware("dgx-h100"), 16));
  EXPECT_EQ(r.ranks_simulated, 1);
  EXPECT_GT(to_seconds(r.step_time), 2e-3);
  EXPECT_LT(to_seconds(r.step_time), 4e-3);
}

// One kernel for all collectives of an NCCL group: parts of 1 and 3 MB from two roots take the time
// of one broadcast of 4 MB, a quarter and three quarters of it, on the host, too.
TEST(Collective, LaunchedTogetherCostsOneLaunch) {
  const auto cost = make_cost_model(make_cluster(load_hardware("dgx-a100-80"), 16));
  for (const std::int64_t gpus : {8, 16}) {
    std::vector<std::int64_t> ranks(static_cast<std::size_t>(gpus));
    std::iota(ranks.begin(), ranks.end(), 0);
    Collective whole, small, large;
    whole.kind = small.kind = large.kind = CollectiveKind::kBroadcast;
    whole.bytes = small.launched_together = large.launched_together = Bytes(4'000'000);
    small.bytes = Bytes(1'000'000);
    large.bytes = Bytes(3'000'000);
    const TransferCost all = cost->collective(whole, ranks), a = cost->collective(small, ranks),
                       b = cost->collective(large, ranks);
    EXPECT_NEAR(to_seconds(a.device), to_seconds(all.device) / 4, 1e-11);
    EXPECT_NEAR(to_seconds(b.device), to_seconds(all.device) * 3 / 4, 1e-11);
    EXPECT_NEAR(to_seconds(a.host + b.host), to_seconds(all.host), 1e-11);
    EXPECT_EQ(a.rate.per_second, all.rate.per_second);
    small.launched_together = Bytes(0);
    EXPECT_GT(cost->collective(small, ranks).device, a.device);
  }
}

}  // namespace
}  // namespace foreshard
