#include <gtest/gtest.h>

#include <numeric>

#include "hwprofiles/topology.h"

namespace foreshard {
namespace {

RingBandwidth rings(const std::string& hardware, int gpus) {
  std::vector<int> members(static_cast<std::size_t>(gpus));
  std::iota(members.begin(), members.end(), 0);
  return ring_bandwidth(load_hardware(hardware), members);
}

// NCCL's search as its debug output and source give it: A100 12 links x 20 = 240 GB/s as 6 rings of
// 40, H100 18 x 20.6 = 370.8 as 6 of 60, B200 18 x 40.1 = 721.8 as 8 of 90 (docs/collectives.md).
TEST(Rings, SwitchedNodesFollowTheSpeedList) {
  EXPECT_DOUBLE_EQ(rings("dgx-a100-80", 8).bytes_per_second, 240e9);
  EXPECT_EQ(rings("dgx-a100-80", 8).rings, 6);
  EXPECT_DOUBLE_EQ(rings("dgx-h100", 8).bytes_per_second, 360e9);
  EXPECT_EQ(rings("dgx-h100", 8).rings, 6);
  EXPECT_DOUBLE_EQ(rings("dgx-b200", 8).bytes_per_second, 720e9);
  EXPECT_EQ(rings("dgx-b200", 8).rings, 8);
}

// DGX-1V cube mesh, counted by hand on its links: GPUs 0, 1 share one link; 0, 1, 2 one triangle
// (two directions); 0..4 no cycle, because GPU 4 only meets GPU 0; 0..5 one cycle, through the
// single link 4-5; 0..6 two; all eight three.
TEST(Rings, CubeMeshCountsDisjointCycles) {
  EXPECT_EQ(rings("dgx-1v", 2).rings, 1);
  EXPECT_EQ(rings("dgx-1v", 3).rings, 2);
  EXPECT_EQ(rings("dgx-1v", 4).rings, 4);
  EXPECT_TRUE(rings("dgx-1v", 5).chain_only);
  EXPECT_EQ(rings("dgx-1v", 5).narrowest,
            LinkKind::kSocket);  // PCIe between GPU 4 and the first socket
  EXPECT_EQ(rings("dgx-1v", 6).rings, 2);
  EXPECT_EQ(rings("dgx-1v", 7).rings, 4);
  EXPECT_EQ(rings("dgx-1v", 8).rings, 6);
}

TEST(Rings, PcieBoxesFollowTheNarrowestHop) {
  EXPECT_DOUBLE_EQ(rings("8x-rtx4090-p2p", 4).bytes_per_second, 25e9);
  EXPECT_EQ(rings("8x-l40s", 8).narrowest, LinkKind::kSocket);
  // No peer access: through host memory, 15 GB/s on 8 cards (hw-facts: all-reduce with the stock
  // driver).
  EXPECT_NEAR(rings("8x-rtx4090", 8).bytes_per_second, 15e9, 1e6);
  EXPECT_EQ(rings("8x-a100-pcie", 2).narrowest, LinkKind::kNvLink);  // one bridge pair
  EXPECT_EQ(rings("8x-a100-pcie", 3).narrowest, LinkKind::kPcie);    // as soon as a third GPU joins
}

TEST(Topology, RoutesTakeTheWidestWay) {
  const auto machine = load_hardware("dgx-h100");
  const Topology topology(machine, 2);
  const auto inside = topology.route(topology.gpu(0, 0), topology.gpu(0, 5));
  EXPECT_EQ(inside.links.size(), 2u);  // GPU - NVSwitch - GPU
  EXPECT_DOUBLE_EQ(inside.capacity.per_second, 450e9);
  const auto outside = topology.route(topology.gpu(0, 3), topology.gpu(1, 3));
  EXPECT_EQ(outside.narrowest, LinkKind::kNetwork);
  EXPECT_DOUBLE_EQ(outside.capacity.per_second, 50e9);
  EXPECT_TRUE(topology.route(0, 0).links.empty());
}

TEST(Topology, GpusDoNotForward) {
  const Topology topology(load_hardware("dgx-1v"));
  // GPU 0 and 7 share no link: the way goes over PCIe, not through GPU 3 or 4.
  const auto route = topology.route(topology.gpu(0, 0), topology.gpu(0, 7));
  EXPECT_NE(route.narrowest, LinkKind::kNvLink);
  for (const int link : route.links)
    EXPECT_NE(topology.links()[static_cast<std::size_t>(link)].kind, LinkKind::kNvLink);
}

TEST(Topology, EveryMachineOfTheCatalogueHasAGraph) {
  for (const auto& name : hardware_names()) {
    const auto machine = load_hardware(name);
    const Topology topology(machine);
    EXPECT_FALSE(topology.draw().empty()) << name;
    const int last = machine.gpus_per_node() - 1;
    if (last == 0) continue;
    EXPECT_GT(topology.route(topology.gpu(0, 0), topology.gpu(0, last)).capacity.per_second, 0)
        << name;
  }
}

}  // namespace
}  // namespace foreshard
