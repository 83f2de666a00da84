// Kernels of the CPU (Stream::on_host): offloaded optimizers. Times by hand.

#include <gtest/gtest.h>

#include "hwprofiles/profile.h"
#include "sim/hardware_cost.h"
#include "sim/simulator.h"
#include "toy.h"

namespace foreshard {
namespace {

using toy::ToyCost;
using toy::ToyProgram;

/// Forward 40 on the device, down 100, the host waits, 300 on the CPU, up 50, forward 10: the
/// device idles 450 of 500 ns, 300 of them for the optimizer and 150 for copies.
TEST(CpuStream, OptimizerOnTheCpuIsOptimizerTime) {
  ToyProgram p;
  p.p.streams[2].on_host = true;
  p.launch(40).copy(CopyDirection::kDeviceToHost, 100, 0, true);
  p.launch(300, 2, 0, Phase::kOptimizer).sync_stream(2);
  p.copy(CopyDirection::kHostToDevice, 50, 0).launch(10);
  const SimulationResult r = simulate(toy::schedule_of(p, 1), ToyCost{}, {});
  EXPECT_EQ(r.step_time, nanoseconds(500));
  EXPECT_EQ(r.breakdown.optimizer, nanoseconds(300));
  EXPECT_EQ(r.breakdown.exposed_communication, nanoseconds(150));
  EXPECT_EQ(r.breakdown.compute, nanoseconds(50));
}

/// Transfers slow kernels of the device down, not those of the CPU. A gather of 150 that doubles
/// kernels beside one of 100: on the device 75 are done when it ends, the rest takes 25, then 1
/// more: 176. On the CPU 100; the gather ends the step at 150.
TEST(CpuStream, TransfersDoNotSlowTheCpu) {
  for (const bool on_host : {false, true}) {
    ToyProgram p;
    p.p.streams[2].on_host = on_host;
    p.gather(150).launch(100, 2).sync_stream(2).launch(1);
    ToyCost cost;
    cost.traffic[static_cast<std::size_t>(CollectiveKind::kAllGather)] = {100, {1, 0, 0, 0}, 1.0};
    const SimulationResult r = simulate(toy::schedule_of(p, 4), cost, {});
    EXPECT_NEAR(to_seconds(r.step_time) * 1e9, on_host ? 150 : 176, 1) << on_host;
  }
}

/// A pass over 12 GB on a node of 400 GB/s: 0.45 of it are used, eight GPUs' processes share: 12 /
/// (180 / 8) = 8/15 s; on one GPU 1/15 s. The same launch on a device stream is the GPU's.
TEST(CpuStream, BoundByTheShareOfHostMemory) {
  const HardwareProfile profile = load_hardware("dgx-a100-80");
  ASSERT_EQ(profile.node.host_memory_bandwidth.value, 400e9);
  RankProgram p;
  p.streams = {{"compute", 0}, {"cpu", 0, true}};
  Launch l;
  l.op = OpKind::kFusedAdamW;
  l.stream = 1;
  l.read = Bytes(8'000'000'000);
  l.written = Bytes(4'000'000'000);
  const auto eight = make_cost_model(make_cluster(profile, 8), {}),
             one = make_cost_model(make_cluster(profile, 1), {});
  EXPECT_NEAR(to_seconds(eight->launch(p, l).device), 8.0 / 15, 1e-6);
  EXPECT_NEAR(to_seconds(one->launch(p, l).device), 1.0 / 15, 1e-6);
  l.stream = 0;
  EXPECT_LT(to_seconds(eight->launch(p, l).device), 0.01);
}

}  // namespace
}  // namespace foreshard
