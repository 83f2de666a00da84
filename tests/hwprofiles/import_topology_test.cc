#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/json.h"
#include "hwprofiles/import_topology.h"
#include "hwprofiles/nic_search.h"
#include "hwprofiles/topology.h"
#include "tests/shared_folder.h"

namespace foreshard {
namespace {

// Form of nvidia-smi topo -m on an HGX A100 with NICs, affinity columns and legend.
constexpr const char* kA100 =
    R"(	GPU0	GPU1	GPU2	GPU3	mlx5_0	mlx5_1	CPU Affinity	NUMA Affinity
GPU0	 X 	NV12	NV12	NV12	PXB	SYS	0-23	0
GPU1	NV12	 X 	NV12	NV12	PXB	SYS	0-23	0
GPU2	NV12	NV12	 X 	NV12	SYS	PXB	24-47	1
GPU3	NV12	NV12	NV12	 X 	SYS	PXB	24-47	1
mlx5_0	PXB	PXB	SYS	SYS	 X 	SYS
mlx5_1	SYS	SYS	PXB	PXB	SYS	 X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
)";

std::string error_of_topology(const std::string& text, bool xml = false) {
  try {
    xml ? parse_nccl_topology_xml(text, "file") : parse_smi_topology(text, "file");
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

// NVLink hides the paths between sockets; the NUMA column shows them (shape of an 8-GPU box, cut
// down to four).
TEST(SmiTopology, NumaColumnShowsTheSocketsBehindNvlink) {
  const auto t = parse_smi_topology(
      "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n"
      "GPU0\t X \tNV12\tNV12\tNV12\t0-23\t0\nGPU1\tNV12\t X \tNV12\tNV12\t0-23\t0\n"
      "GPU2\tNV12\tNV12\t X \tNV12\t24-47\t1\nGPU3\tNV12\tNV12\tNV12\t X \t24-47\t1\n",
      "topo");
  EXPECT_EQ(t.sockets, 2);
}

TEST(SmiTopology, TwelveLinksToThreePeersMeanASwitch) {
  const auto t = parse_smi_topology(kA100, "topo.txt");
  EXPECT_EQ(t.gpus, 4);
  EXPECT_EQ(t.nics, 2);
  EXPECT_EQ(t.fabric, FabricKind::kNvSwitch);  // 3 peers x 12 links = 36, no GPU has as many
  EXPECT_EQ(t.links_per_gpu, 12);
  // 12 links x 25 GB/s
  const auto machine = with_topology(load_hardware("dgx-a100-80"), t, "topo.txt");
  EXPECT_DOUBLE_EQ(machine.gpu.nvlink_bandwidth.value, 300e9);
  EXPECT_EQ(machine.gpus_per_node(), 4);
}

TEST(SmiTopology, PhbMeansPcieOnly) {
  const auto t = parse_smi_topology(
      "        GPU0    GPU1    CPU Affinity    NUMA Affinity\n"
      "GPU0     X      PHB     0-11            N/A\n"
      "GPU1    PHB      X      0-11            N/A\n",
      "topo.txt");
  EXPECT_EQ(t.fabric, FabricKind::kPcie);
  EXPECT_EQ(t.links_per_gpu, 0);
  EXPECT_EQ(t.sockets, 1);
}

TEST(SmiTopology, BridgesAndSocketsAreSeen) {
  const auto t = parse_smi_topology(
      "\x1b[4m\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\x1b[0m\n"
      "GPU0\t X\tNV4\tSYS\tSYS\t0-7\nGPU1\tNV4\t X\tSYS\tSYS\t0-7\n"
      "GPU2\tSYS\tSYS\t X\tNV4\t8-15\nGPU3\tSYS\tSYS\tNV4\t X\t8-15\n",
      "topo.txt");
  EXPECT_EQ(t.fabric, FabricKind::kNvLinkPairs);
  EXPECT_EQ(t.links_per_gpu, 4);
}

/// Rows of a matrix without its header; NUMA nodes in the last column.
std::string matrix(const std::string& header, const std::vector<std::string>& rows) {
  std::string text = header + "\n";
  for (std::size_t i = 0; i < rows.size(); ++i) text += fmt::format("GPU{} {}\n", i, rows[i]);
  return text;
}

// Sockets: bridged pairs with SYS between them and NODE paths beside bridges, with and without the
// NUMA column; DGX-1V's cube (4 + 4, links across) without one.
TEST(SmiTopology, SocketsAreFoundBesideNvlink) {
  const std::string four = "GPU0 GPU1 GPU2 GPU3 CPU Affinity NUMA Affinity",
                    bare = "GPU0 GPU1 GPU2 GPU3 CPU Affinity";
  const std::vector<std::string> numa = {"X NV4 SYS SYS 0-15 0", "NV4 X SYS SYS 0-15 0",
                                         "SYS SYS X NV4 16-31 1", "SYS SYS NV4 X 16-31 1"};
  EXPECT_EQ(parse_smi_topology(matrix(four, numa), "t").sockets, 2);
  const std::vector<std::string> plain = {"X NV4 SYS SYS 0-15", "NV4 X SYS SYS 0-15",
                                          "SYS SYS X NV4 16-31", "SYS SYS NV4 X 16-31"};
  EXPECT_EQ(parse_smi_topology(matrix(bare, plain), "t").sockets, 2);
  const std::vector<std::string> nodes = {
      "X NV4 NODE NODE SYS SYS SYS SYS 0 0", "NV4 X NODE NODE SYS SYS SYS SYS 0 0",
      "NODE NODE X NV4 SYS SYS SYS SYS 0 0", "NODE NODE NV4 X SYS SYS SYS SYS 0 0",
      "SYS SYS SYS SYS X NV4 NODE NODE 1 1", "SYS SYS SYS SYS NV4 X NODE NODE 1 1",
      "SYS SYS SYS SYS NODE NODE X NV4 1 1", "SYS SYS SYS SYS NODE NODE NV4 X 1 1"};
  const std::string eight = "GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7 CPU Affinity NUMA Affinity";
  EXPECT_EQ(parse_smi_topology(matrix(eight, nodes), "t").sockets, 2);
  const std::vector<std::string> cube = {
      "X NV1 NV1 NV2 NV2 SYS SYS SYS", "NV1 X NV2 NV1 SYS NV2 SYS SYS",
      "NV1 NV2 X NV2 SYS SYS NV1 SYS", "NV2 NV1 NV2 X SYS SYS SYS NV1",
      "NV2 SYS SYS SYS X NV1 NV1 NV2", "SYS NV2 SYS SYS NV1 X NV2 NV1",
      "SYS SYS NV1 SYS NV1 NV2 X NV2", "SYS SYS SYS NV1 NV2 NV1 NV2 X"};
  EXPECT_EQ(parse_smi_topology(matrix(eight, cube), "t").sockets, 2);
}

// A card with NODE to the nearest GPU hangs on the CPU; with PXB on the switch of two GPUs whose
// own path NVLink hides. Where some cards are near GPUs the others are no NICs of collectives.
TEST(SmiTopology, CardsHangWhereTheirPathsSay) {
  const auto far = parse_smi_topology(matrix("GPU0 GPU1 GPU2 GPU3 NIC0 CPU Affinity",
                                             {"X PIX SYS SYS NODE 0", "PIX X SYS SYS NODE 0",
                                              "SYS SYS X PIX SYS 1", "SYS SYS PIX X SYS 1"}),
                                      "t");
  EXPECT_EQ(far.nics, 1);
  EXPECT_EQ(far.nics_on_switches, std::optional(false));
  const auto machine = with_topology(load_hardware("dgx-a100-80"), far, "/x/mine.txt");
  EXPECT_NE(Topology(machine, 1).draw().find("nic0       cpu0"), std::string::npos);
  EXPECT_EQ(machine.name, "mine");
  EXPECT_EQ(machine.title, "4 x NVIDIA A100 SXM4 80 GB, pcie (imported)");
  EXPECT_EQ(machine.network.rails.count(), 1);
  const auto near = parse_smi_topology(
      matrix("GPU0 GPU1 GPU2 GPU3 mlx5_0 mlx5_1 mlx5_2 CPU Affinity NUMA Affinity",
             {"X NV12 NV12 NV12 PXB SYS NODE 0 0", "NV12 X NV12 NV12 PXB SYS NODE 0 0",
              "NV12 NV12 X NV12 SYS PXB SYS 1 1", "NV12 NV12 NV12 X SYS PXB SYS 1 1"}),
      "t");
  EXPECT_EQ(near.gpus_per_pcie_switch, 2);
  EXPECT_EQ(near.nics, 2);
  EXPECT_EQ(near.nics_on_switches, std::optional(true));
  EXPECT_TRUE(std::any_of(near.notes.begin(), near.notes.end(), [](const std::string& n) {
    return n.find("mlx5_2") != std::string::npos;
  }));
}

// What the base's GPUs cannot be is refused: an A100 has 12 NVLinks and capability 8.0.
TEST(SmiTopology, AnotherGpuThanTheBasesIsRefused) {
  ImportedTopology t;
  t.gpus = 8;
  t.fabric = FabricKind::kNvSwitch;
  t.links_per_gpu = 18;
  EXPECT_THROW(with_topology(load_hardware("dgx-a100-80"), t, "f"), InputError);
  EXPECT_NO_THROW(with_topology(load_hardware("dgx-h100"), t, "f"));
  t.links_per_gpu = 12;
  t.compute_capability = 9.0;
  EXPECT_THROW(with_topology(load_hardware("dgx-a100-80"), t, "f"), InputError);
}

TEST(SmiTopology, DamagedTextIsRefused) {
  EXPECT_NE(error_of_topology("").find("no matrix"), std::string::npos);
  EXPECT_NE(error_of_topology(std::string("GPU0\0GPU1", 9)).find("binary"), std::string::npos);
  const std::string whole = kA100;
  EXPECT_NE(error_of_topology(whole.substr(0, 150)), "no error");  // cut inside the rows
  std::string asymmetric = whole;
  asymmetric.replace(asymmetric.find("NV12"), 4, "NV11");
  EXPECT_NE(error_of_topology(asymmetric).find("contradicts"), std::string::npos);
  std::string unknown = whole;
  unknown.replace(unknown.find("NV12"), 4, "WIFI");
  EXPECT_NE(error_of_topology(unknown).find("cells"), std::string::npos);
  std::string header = whole;
  header.replace(header.find("GPU3"), 4, "MIG");
  EXPECT_NE(error_of_topology(header).find("MIG"), std::string::npos);
  std::string cut = whole;
  cut.replace(cut.find("mlx5_1"), 6, "");
  EXPECT_NE(error_of_topology(cut).find("more cells"), std::string::npos);
}

std::string xml_with_nics(const std::vector<double>& gbit, double on_cpu = 0);

/// The matrix of these NVLink counts (0: SYS) between GPUs.
std::string matrix_of(const std::vector<std::vector<int>>& links) {
  std::string head = "\t", out;
  for (std::size_t a = 0; a < links.size(); ++a) {
    head += fmt::format("GPU{}\t", a);
    out += fmt::format("GPU{}", a);
    for (std::size_t b = 0; b < links.size(); ++b)
      out += a == b ? "\t X " : links[a][b] == 0 ? "\tSYS" : fmt::format("\tNV{}", links[a][b]);
    out += "\t0-31\t0\n";
  }
  return head + "CPU Affinity\tNUMA Affinity\n" + out;
}

// Rings go through every GPU, so that the weakest counts; which it is stands in a note. The same
// for a switch with a lost link, bridges of unequal width, and a pair without a bridge.
TEST(SmiTopology, TheWeakestGpuCounts) {
  std::vector<std::vector<int>> eight(8, std::vector<int>(8, 18));
  auto t = parse_smi_topology(matrix_of(eight), "topo");
  EXPECT_EQ(t.links_per_gpu, 18);
  EXPECT_TRUE(t.notes.size() == 1) << fmt::format("{}", fmt::join(t.notes, "; "));  // No NIC.
  for (int g = 0; g < 8; ++g) eight[3][g] = eight[g][3] = 17;
  t = parse_smi_topology(matrix_of(eight), "topo");
  EXPECT_EQ(t.fabric, FabricKind::kNvSwitch);
  EXPECT_EQ(t.links_per_gpu, 17);
  EXPECT_EQ(t.notes.at(0), "GPU3 has 17 NVLinks, others up to 18: 17 taken for all");
  t = parse_smi_topology(matrix_of({{0, 4, 0, 0}, {4, 0, 0, 0}, {0, 0, 0, 2}, {0, 0, 2, 0}}),
                         "topo");
  EXPECT_EQ(t.fabric, FabricKind::kNvLinkPairs);
  EXPECT_EQ(t.links_per_gpu, 2);
  EXPECT_EQ(t.notes.at(0), "GPU2, GPU3 have 2 NVLinks, others up to 4: 2 taken for all");
  t = parse_smi_topology(matrix_of({{0, 4, 0, 0}, {4, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}),
                         "topo");
  EXPECT_EQ(t.fabric, FabricKind::kPcie);
  EXPECT_EQ(t.links_per_gpu, 0);
  EXPECT_NE(t.notes.at(0).find("GPU2, GPU3 have 0 NVLinks"), std::string::npos);
  // In NCCL's file the switch's links are counted with each GPU.
  std::string xml = xml_with_nics({400, 400});
  xml.replace(xml.find("count=\"18\""), 10, "count=\"12\"");
  t = parse_nccl_topology_xml(xml, "topo.xml");
  EXPECT_EQ(t.links_per_gpu, 12);
  EXPECT_EQ(t.notes.at(t.notes.size() - 1),
            "GPU0 has 12 NVLinks, others up to 18: 12 taken for all");
}

// Form of NCCL's src/graph/xml.cc: two GPUs on one PCIe switch, links to an NVSwitch, one NIC of
// 200 Gb/s.
constexpr const char* kXml = R"(<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:07:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:c4:00.0" count="12" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:0f:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
        <gpu dev="1" sm="80" rank="1" gdr="1">
          <nvlink target="0000:c4:00.0" count="12" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:0a:00.0" class="0x020700" link_speed="16 GT/s" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" maxconn="262144" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
</system>
)";

TEST(NcclTopology, ReadsSwitchNicAndSlots) {
  const auto t = parse_nccl_topology_xml(kXml, "topo.xml");
  EXPECT_EQ(t.gpus, 2);
  EXPECT_EQ(t.fabric, FabricKind::kNvSwitch);
  EXPECT_EQ(t.links_per_gpu, 12);
  EXPECT_EQ(t.gpus_per_pcie_switch, 2);
  EXPECT_EQ(t.nics, 1);
  EXPECT_DOUBLE_EQ(t.nic_rate.value(), 25e9);       // 200 Gb/s
  EXPECT_NEAR(t.pcie_rate.value(), 31.5e9, 0.1e9);  // gen 4 x16
  EXPECT_DOUBLE_EQ(t.compute_capability.value(), 8.0);
}

/// Two H100 behind a switch each, NICs of these Gb/s (none for 0) beside them in turn, and one on
/// the CPU.
std::string xml_with_nics(const std::vector<double>& gbit, double on_cpu) {
  const auto net = [](const std::string& name, double rate) {
    return fmt::format(
        R"(<pci busid="{0}" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"><nic><net name="{0}" speed="{1}"/></nic></pci>)",
        name, rate * 1000);
  };
  std::string out = R"(<system version="1">)";
  for (std::size_t g = 0; g < 2; ++g) {
    out += fmt::format(
        R"(<cpu numaid="{0}"><pci busid="0000:{0}5:00.0" class="0x060400"><pci busid="0000:{0}9:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="{0}" sm="90"><nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu></pci>)",
        g);
    for (std::size_t i = g; i < gbit.size(); i += 2) out += net(fmt::format("mlx5_{}", i), gbit[i]);
    out += "</pci>" + (g == 0 && on_cpu > 0 ? net("bond0", on_cpu) : "") + "</cpu>";
  }
  return out + "</system>";
}

std::string joined(const std::vector<std::string>& notes) {
  return fmt::format("{}", fmt::join(notes, "\n"));
}

// NCCL's search (src/graph/search.cc) by hand. 400 and 200 Gb/s: at 48 GB/s one channel, 48; at 24
// two and one, 72, the most; a third of the data each, so 50 / 2 and 25 move 75 GB/s. 100 and 200
// Gb/s: at 24 one, 24; at 12 one and two, 36; 12.5 and 25 / 2 move 37.5. 400 and 100: at 48 one;
// the next that uses the slow one, 12, is below 0.49 of 48 and never tried.
TEST(NcclTopology, ChannelsOverUnequalNicsHaveOneSpeed) {
  struct Case {
    std::vector<double> gbit;
    int nics;
    double together;
  };
  for (const Case& c : {Case{{400, 200}, 2, 75e9}, Case{{100, 200}, 2, 37.5e9},
                        Case{{400, 100}, 1, 50e9}, Case{{400, 400, 25}, 2, 100e9},
                        Case{{200, 200, 200, 100}, 4, 87.5e9}, Case{{400, 400}, 2, 100e9}}) {
    const auto t = parse_nccl_topology_xml(xml_with_nics(c.gbit), "topo.xml");
    EXPECT_EQ(t.nics, c.nics) << c.gbit[0] << " " << c.gbit[1];
    EXPECT_NEAR(*t.nic_rate * t.nics, c.together, 1) << c.gbit[0] << " " << c.gbit[1];
    const bool equal = std::equal(c.gbit.begin() + 1, c.gbit.end(), c.gbit.begin());
    for (std::size_t i = 0; i < c.gbit.size(); ++i)
      EXPECT_EQ(
          joined(t.notes).find(fmt::format("mlx5_{} {:g} Gb/s", i, c.gbit[i])) == std::string::npos,
          equal)
          << joined(t.notes);
  }
}

// Whatever the NICs: never more than they have together, and never less than the fastest half.
TEST(NcclTopology, NoProfileHasMoreThanItsNics) {
  for (const double capability : {7.0, 8.0, 9.0, 10.0}) {
    for (double a : {0.1, 1.0, 10.0, 25.0, 56.0, 100.0, 200.0, 400.0, 800.0}) {
      for (double b : {0.1, 1.0, 10.0, 40.0, 100.0, 200.0, 400.0, 800.0}) {
        for (int copies = 1; copies < 5; ++copies) {
          std::vector<double> rates(static_cast<std::size_t>(copies), a * 1e9 / 8);
          rates.push_back(b * 1e9 / 8);
          double sum = 0;
          for (const double r : rates) sum += r;
          const double found = search_nics(rates, capability).bytes_per_second;
          EXPECT_LE(found, sum * (1 + 1e-12)) << a << " " << b;
          EXPECT_GE(found, 0.5 * std::max(a, b) * 1e9 / 8) << a << " " << b;
        }
      }
    }
  }
}

TEST(NcclTopology, CardsAwayFromTheGpusAreLeftOut) {
  const auto t = parse_nccl_topology_xml(xml_with_nics({400, 400}, 25), "topo.xml");
  EXPECT_EQ(t.nics, 2);
  EXPECT_DOUBLE_EQ(*t.nic_rate, 50e9);
  EXPECT_NE(joined(t.notes).find("bond0 shares no switch"), std::string::npos) << joined(t.notes);
  // The only card is the network, wherever it hangs; without a speed it is NCCL's 10 Gb/s beside
  // others.
  const auto one = parse_nccl_topology_xml(xml_with_nics({}, 25), "topo.xml");
  EXPECT_EQ(one.nics, 1);
  EXPECT_FALSE(*one.nics_on_switches);
  EXPECT_DOUBLE_EQ(*one.nic_rate, 25e9 / 8);
  EXPECT_TRUE(one.notes.empty()) << joined(one.notes);
  const auto silent = parse_nccl_topology_xml(xml_with_nics({400, 0}), "topo.xml");
  EXPECT_NE(joined(silent.notes).find("mlx5_1 states no speed"), std::string::npos);
  EXPECT_FALSE(parse_nccl_topology_xml(xml_with_nics({0, 0}), "topo.xml").nic_rate.has_value());
}

TEST(NcclTopology, DamagedXmlIsRefused) {
  const std::string whole = kXml;
  for (std::size_t size = 0; size < whole.size() - 10; size += 37)
    EXPECT_NE(error_of_topology(whole.substr(0, size), true), "no error");
  EXPECT_NE(error_of_topology("<html></html>", true).find("<system>"), std::string::npos);
  EXPECT_NE(error_of_topology("<system/>", true).find("no GPU"), std::string::npos);
  EXPECT_NE(error_of_topology("<!DOCTYPE x [<!ENTITY a \"b\">]><system>&a;</system>", true)
                .find("document type"),
            std::string::npos);
  std::string deep = "<system>";
  for (int i = 0; i < 100000; ++i) deep += "<pci>";
  EXPECT_NE(error_of_topology(deep, true).find("deeply"), std::string::npos);
  EXPECT_NE(error_of_topology(std::string("\x7f"
                                          "ELF\0\1\2",
                                          7),
                              true),
            "no error");
}

TEST(TopologyFiles, MutatedFilesAreReadOrRefused) {
  std::uint32_t random = 1;
  const auto next = [&] { return random = random * 1664525u + 1013904223u; };
  for (int round = 0; round < 3000; ++round) {
    const bool xml = round % 2 == 0;
    std::string text = xml ? kXml : kA100;
    for (int i = 0; i < 3; ++i) text[(next() >> 8) % text.size()] = static_cast<char>(next() >> 24);
    error_of_topology(text, xml);  // any exception but InputError fails the test
  }
}

// 12 x 25 = 300 and 18 x 25 = 450 GB/s per direction; PHB means no NVLink; NV2 between two consumer
// cards.
TEST(SmiTopology, RealPublicMatrices) {
  const auto topo = shared_folder() / "data" / "user-files" / "topo";
  FORESHARD_NEEDS(topo);
  const auto read = [&](const char* name) {
    return parse_smi_topology(read_text_file(topo / name), name);
  };
  const auto a100 = with_topology(load_hardware("dgx-a100-80"), read("a100_8gpu_nv12.txt"), "topo");
  EXPECT_EQ(a100.node.fabric, FabricKind::kNvSwitch);
  EXPECT_DOUBLE_EQ(a100.gpu.nvlink_bandwidth.value, 300e9);
  const auto h100 = with_topology(load_hardware("dgx-h100"), read("h100_8gpu_nv18.txt"), "topo");
  EXPECT_DOUBLE_EQ(h100.gpu.nvlink_bandwidth.value, 450e9);
  EXPECT_EQ(h100.gpus_per_node(), 8);
  EXPECT_EQ(read("consumer_2gpu_nv2.txt").fabric, FabricKind::kNvLinkPairs);
  EXPECT_EQ(read("consumer_2gpu_nv2.txt").links_per_gpu, 2);
  EXPECT_EQ(read("consumer_2gpu_phb.txt").fabric, FabricKind::kPcie);
}

}  // namespace
}  // namespace foreshard
