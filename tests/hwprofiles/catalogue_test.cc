#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"
#include "hwprofiles/fact_text.h"
#include "hwprofiles/profile.h"

namespace foreshard {
namespace {

std::string error_of_name(const std::string& name) {
  try {
    load_hardware(name);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Catalogue, EveryMachineLoadsAndEveryNumberHasASource) {
  ASSERT_GE(hardware_names().size(), 40u);
  for (const auto& name : hardware_names()) {
    SCOPED_TRACE(name);
    const auto machine = load_hardware(name);
    EXPECT_EQ(machine.name, name);
    EXPECT_FALSE(machine.title.empty());
    for (const auto& [path, fact] : all_facts(machine)) {
      EXPECT_FALSE(fact->source.empty()) << path;
    }
  }
}

// A number that nobody looked up is no number of a data sheet, a measurement or a calibration: its
// kind says so, and the range of an answer is that of a guess.
TEST(Catalogue, NumbersFromMemorySayThatTheyAre) {
  int recalled = 0;
  for (const auto& name : hardware_names()) {
    SCOPED_TRACE(name);
    const auto machine = load_hardware(name);
    for (const auto& [path, fact] : all_facts(machine)) {
      recalled += fact->kind == FactKind::kRecalled;
      if (fact->kind != FactKind::kDatasheet && fact->kind != FactKind::kMeasured) continue;
      EXPECT_EQ(fact->source.find("unverified"), std::string::npos) << path;
      EXPECT_EQ(fact->source.find("from memory"), std::string::npos) << path;
    }
  }
  EXPECT_GT(recalled, 0);
}

TEST(Catalogue, EveryGpuTypeLoadsAndHasAUsualBox) {
  for (const auto& name : gpu_names()) {
    SCOPED_TRACE(name);
    const auto gpu = load_gpu(name);
    EXPECT_GT(gpu.allocatable_memory().value, 0);
    EXPECT_TRUE(gpu.find_efficiency("matmul_training") != nullptr);
    EXPECT_GE(load_hardware("1x-" + name).gpus_per_node(), 1);
  }
}

// Chips that nobody measured take what is known of a relative now, not what was known once: a
// number copied into their file would miss the next calibration.
TEST(Catalogue, RelativesShareWhatIsKnown) {
  const std::pair<const char*, const char*> relatives[] = {
      {"b300", "b200"},        {"gb200", "b200"},       {"gb300", "b200"},
      {"gh200-96", "h100-80"}, {"h100-nvl", "h100-80"}, {"h100-pcie", "h100-80"},
      {"l40s", "a100-80"},     {"v100-32", "a100-80"}};
  for (const auto& [name, of] : relatives) {
    SCOPED_TRACE(name);
    const GpuProfile gpu = load_gpu(name), relative = load_gpu(of);
    ASSERT_FALSE(gpu.efficiency_of.empty());
    for (const auto& [key, origin] : gpu.efficiency_of) {
      const double scale =
          key.rfind("attention_fa2_h", 0) == 0 && key.rfind("length") == std::string::npos
              ? gpu.peak_fp16.value / relative.peak_fp16.value
              : 1;
      if (key.find("fa3") != std::string::npos || key.find("cudnn") != std::string::npos) continue;
      EXPECT_NEAR(gpu.efficiency_or(key, 0) / relative.efficiency_or(key, 1), scale, 1e-9) << key;
    }
  }
}

// NVIDIA H100 SXM data sheet: 80 GB, 3.35 TB/s, 989 TFLOP/s dense bf16, 132 SMs, NVLink 900 GB/s
// both ways.
TEST(Catalogue, DgxH100CarriesTheDataSheet) {
  const auto machine = load_hardware("dgx-h100");
  EXPECT_EQ(machine.gpus_per_node(), 8);
  EXPECT_EQ(machine.gpu.multiprocessors.count(), 132);
  EXPECT_DOUBLE_EQ(machine.gpu.peak(DType::kBFloat16).value, 989e12);
  EXPECT_DOUBLE_EQ(machine.gpu.memory_bandwidth.value, 3.35e12);
  EXPECT_DOUBLE_EQ(machine.gpu.memory.value, 80e9);
  EXPECT_DOUBLE_EQ(machine.gpu.nvlink_bandwidth.value, 450e9);
  EXPECT_EQ(machine.node.fabric, FabricKind::kNvSwitch);
  EXPECT_EQ(machine.network.kind, NetworkKind::kInfiniBand);
  EXPECT_DOUBLE_EQ(machine.network.nic_rate.value, 50e9);
  EXPECT_EQ(machine.network.nics.count(), 8);
  // 79.18 GiB as PyTorch prints of an H100 80 GB, less 0.55 GiB of context.
  EXPECT_NEAR(static_cast<double>(machine.gpu.allocatable_memory().value),
              (81079.0 - 0.55 * 1024) * 1048576, 1.0);
}

TEST(Catalogue, NamesThatUsersTypeMeanWhatTheySay) {
  for (const auto* name : {"dgx-h100", "hgx-h200", "dgx-a100-80", "dgx-a100-40", "dgx-b200",
                           "8x-l40s", "8x-rtx4090"}) {
    EXPECT_EQ(load_hardware(name).gpus_per_node(), 8) << name;
  }
  const auto v100 = load_hardware("4x-v100");
  EXPECT_EQ(v100.gpus_per_node(), 4);
  EXPECT_EQ(v100.gpu.name, "v100-32");
  EXPECT_EQ(v100.node.mesh.size(), 6u);  // the quad of a DGX-1 is fully connected: 4*3/2 pairs

  const auto two = load_hardware("2x-a100-80-200g");
  EXPECT_EQ(two.nodes, 2);
  EXPECT_EQ(two.gpus_per_node(), 8);
  EXPECT_EQ(two.gpu.name, "a100-80");
  EXPECT_DOUBLE_EQ(two.network.nic_rate.value, 25e9);

  const auto other = load_hardware("dgx-h100@4x100g-roce");
  EXPECT_EQ(other.network.kind, NetworkKind::kRoce);
  EXPECT_EQ(other.network.nics.count(), 4);
  EXPECT_DOUBLE_EQ(other.network.nic_rate.value, 12.5e9);

  EXPECT_EQ(load_hardware("16x-h100").nodes, 2);
  EXPECT_EQ(load_hardware("4x-dgx-h100").nodes, 4);
  EXPECT_EQ(load_hardware("8x-rtx4090@100g").network.nics.count(), 1);
}

TEST(Catalogue, UnknownNamesGetTheNearestOne) {
  EXPECT_NE(error_of_name("dgx-h10").find("dgx-h100"), std::string::npos)
      << error_of_name("dgx-h10");
  EXPECT_NE(error_of_name("8x-l40").find("l4"), std::string::npos) << error_of_name("8x-l40");
  EXPECT_NE(error_of_name("dgx-h100@fast").find("@400g"), std::string::npos);
  EXPECT_NE(error_of_name("dgx-h100@400g-token-ring").find("roce"), std::string::npos);
  EXPECT_NE(error_of_name("12x-h100").find("multiple of 8"), std::string::npos);
  EXPECT_NE(error_of_name("dgx-h100@0g"), "no error");
  EXPECT_NE(error_of_name("dgx-h100@99999999999g"), "no error");
  EXPECT_NE(error_of_name(""), "no error");
  EXPECT_NE(error_of_name("@"), "no error");
}

// Attention does its products and its exponentials on different units: where products run at half rate
// (fp32 accumulation on GeForce and A10G) it comes nearer to them than on an A100, never past them.
TEST(Catalogue, AttentionBesideSlowProducts) {
  const auto of_products = [](const GpuProfile& gpu, const std::string& key) {
    return gpu.find_efficiency(key)->value /
           (gpu.peak_bf16.value * gpu.find_efficiency("matmul_training")->value);
  };
  const GpuProfile a100 = load_gpu("a100-80");
  for (const char* name : {"rtx3090", "rtx4090", "rtx5090", "a10g"}) {
    const GpuProfile gpu = load_gpu(name);
    ASSERT_LT(gpu.peak_bf16.value, 3 * gpu.peak_fp32.value) << name;
    for (const char* size : {"64", "128"}) {
      for (const char* way : {"forward", "backward"}) {
        const std::string key = std::string("attention_fa2_h") + size + "_" + way;
        EXPECT_GT(of_products(gpu, key), of_products(a100, key)) << name << " " << key;
        EXPECT_LT(of_products(gpu, key), 1) << name << " " << key;
      }
    }
  }
}

TEST(Catalogue, ClustersFillNodes) {
  const auto machine = load_hardware("dgx-h100");
  EXPECT_EQ(make_cluster(machine, 64).nodes, 8);
  EXPECT_EQ(make_cluster(machine, 12).nodes, 2);
  EXPECT_EQ(make_cluster(machine, 4).gpus_per_node, 4);
  EXPECT_EQ(make_cluster(machine, 64).node_of(17), 2);
  EXPECT_THROW(make_cluster(machine, 0), InputError);
  EXPECT_THROW(make_cluster(load_hardware("2x-a100-80-200g"), 24), InputError);
}

TEST(Catalogue, AProfileSurvivesWritingAndReading) {
  for (const auto* name : {"dgx-h100", "dgx-1v", "8x-rtx4090", "2x-a100-80-200g"}) {
    const auto json = to_json(load_hardware(name));
    const auto again = parse_hardware(json.dump(), "again.json");
    EXPECT_EQ(to_json(again).dump(2), json.dump(2)) << name;
  }
}

TEST(Catalogue, DescriptionNamesEverySource) {
  const auto machine = load_hardware("dgx-h100");
  const auto text = describe(machine);
  for (const auto& [path, fact] : all_facts(machine)) {
    EXPECT_NE(text.find(path), std::string::npos);
    EXPECT_NE(text.find(fact->source), std::string::npos);
  }
}

TEST(Catalogue, AGpuFileIsNotAMachine) {
  try {
    parse_hardware(R"({"name": "mine", "generation": "hopper", "memory": "80 GB"})", "mine.json");
    FAIL() << "accepted";
  } catch (const InputError& e) {
    ASSERT_EQ(e.issues().size(), 1u) << e.what();
    EXPECT_NE(std::string(e.what()).find("describes a GPU, not a machine"), std::string::npos);
  }
}

}  // namespace
}  // namespace foreshard
