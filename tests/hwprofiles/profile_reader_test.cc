#include <gtest/gtest.h>

#include "core/error.h"
#include "hwprofiles/profile.h"

namespace foreshard {
namespace {

std::string error_of_profile(const std::string& text, const std::string& file = "box.yaml") {
  try {
    parse_hardware(text, file);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

// The example of docs/formats/hardware.md.
constexpr const char* kMine = R"(base: dgx-h100
name: my-box
title: Our H100 nodes
source: measured by us
kind_of_numbers: measured
gpu:
  power_limit: 600 W
  efficiency:
    matmul_training: 0.6
node:
  host_cpu_factor: 1.3
network:
  base: roce
  nics: 4
  nic_rate: 200 Gb/s
)";

TEST(OwnProfile, StartsFromABaseAndReplacesNumbers) {
  const auto mine = parse_hardware(kMine, "box.yaml");
  EXPECT_EQ(mine.name, "my-box");
  EXPECT_DOUBLE_EQ(mine.gpu.power_limit.value, 600);
  EXPECT_EQ(mine.gpu.power_limit.source, "measured by us");
  EXPECT_EQ(mine.gpu.power_limit.kind, FactKind::kMeasured);
  EXPECT_DOUBLE_EQ(mine.gpu.efficiency_or("matmul_training", 0), 0.6);
  EXPECT_DOUBLE_EQ(mine.gpu.memory.value, 80e9);
  EXPECT_EQ(mine.network.kind, NetworkKind::kRoce);
  EXPECT_DOUBLE_EQ(mine.network.nic_rate.value, 25e9);
}

TEST(OwnProfile, JsonReadsTheSame) {
  const auto mine = parse_hardware(
      R"({"base": "8x-l40s", "gpu": {"memory": {"value": 48, "unit": "GiB", "kind": "measured", "source": "nvidia-smi"}}})",
      "box.json");
  EXPECT_DOUBLE_EQ(mine.gpu.memory.value, 48.0 * (1 << 30));
  EXPECT_EQ(mine.name, "box");
}

// A rate is the relative's by peaks (322 TFLOP/s of 989: at 494.5 it is 161), a share is the same;
// an own number stands; what is not there is told with the nearest name.
TEST(OwnProfile, EfficienciesOfARelative) {
  const std::string head = "base: dgx-a100-80\nsource: us\nkind_of_numbers: measured\ngpu:\n";
  const auto half = parse_hardware(head +
                                       "  peak_fp16: 494.5 TFLOP/s\n  efficiency_as: h100-80\n  "
                                       "efficiency: {memory_bound: 0.5}\n",
                                   "box.yaml");
  const GpuProfile h100 = load_gpu("h100-80");
  EXPECT_NEAR(half.gpu.efficiency_or("attention_fa2_h128_backward", 0), 161e12, 1e6);
  const Fact* matmul = half.gpu.find_efficiency("matmul_training");
  ASSERT_NE(matmul, nullptr);
  EXPECT_DOUBLE_EQ(matmul->value, h100.efficiency_or("matmul_training", 0));
  EXPECT_EQ(matmul->kind, FactKind::kAssumed);
  EXPECT_GE(matmul->uncertainty, 0.1);
  EXPECT_EQ(matmul->source.rfind("as h100-80: ", 0), 0u) << matmul->source;
  EXPECT_DOUBLE_EQ(half.gpu.efficiency_or("memory_bound", 0), 0.5);
  EXPECT_NE(error_of_profile(head + "  efficiency_as: h100-8\n").find("h100-80"),
            std::string::npos);
}

// Both ways to name a kind of network answer with the kinds that there are.
TEST(OwnProfile, UnknownNetworksAreToldOfAllKinds) {
  std::string short_name;
  try {
    load_hardware("dgx-h100@junk");
  } catch (const InputError& e) {
    short_name = e.what();
  }
  const std::string file = error_of_profile("base: dgx-h100\nnetwork: {base: junk}\n");
  for (const char* kind : {"ib", "roce", "roce-staged", "efa", "efa-v1", "tcpx", "slingshot"}) {
    EXPECT_NE(file.find(kind), std::string::npos) << kind << ": " << file;
    EXPECT_NE(short_name.find(kind), std::string::npos) << kind << ": " << short_name;
  }
}

TEST(OwnProfile, NumbersNeedSourceAndUnit) {
  EXPECT_NE(error_of_profile("base: dgx-h100\ngpu: {power_limit: 600 W}\n").find("no source"),
            std::string::npos);
  const std::string head = "base: dgx-h100\nsource: us\nkind_of_numbers: measured\n";
  EXPECT_NE(
      error_of_profile(head + "gpu: {power_limit: 600 GB}\n").find("unit \"GB\" does not fit"),
      std::string::npos);
  EXPECT_NE(error_of_profile(head + "gpu: {power_limit: 600}\n").find("no unit"),
            std::string::npos);
  EXPECT_NE(error_of_profile(head + "gpu: {power_limit: -600 W}\n").find("out of range"),
            std::string::npos);
  EXPECT_NE(error_of_profile(head + "gpu: {power_limit: lots}\n").find("not a number"),
            std::string::npos);
  EXPECT_NE(error_of_profile(head + "gpu: {memory: nan GB}\n"), "no error");
  EXPECT_NE(error_of_profile(head + "gpu: {memory: inf GB}\n"), "no error");
  EXPECT_NE(error_of_profile(
                R"({"base": "dgx-h100", "gpu": {"memory": {"value": 1, "unit": "GB"}}})", "b.json")
                .find("gpu.memory.source"),
            std::string::npos);
}

TEST(OwnProfile, UnknownKeysAndNamesAreErrors) {
  EXPECT_NE(error_of_profile("base: dgx-h100\ngpus: 4\n").find("gpus"), std::string::npos);
  EXPECT_NE(error_of_profile("base: dgx-h10\n").find("dgx-h100"), std::string::npos);
  EXPECT_NE(error_of_profile("base: dgx-h100\ngpu: {base: h1000}\n"), "no error");
  EXPECT_NE(error_of_profile("base: dgx-h100\nnetwork: {base: carrier-pigeon}\n").find("roce"),
            std::string::npos);
  EXPECT_NE(error_of_profile("base: dgx-h100\nnode: {fabric: nvswich}\n").find("nvswitch"),
            std::string::npos);
  EXPECT_NE(error_of_profile("base: dgx-h100\ngpu: {efficiency: {matmul_trainig: 0.5}}\n")
                .find("matmul_training"),
            std::string::npos);
}

TEST(OwnProfile, ContradictionsAreErrors) {
  EXPECT_NE(
      error_of_profile("base: 8x-l40s\nnode: {fabric: nvswitch}\n").find("needs a GPU with links"),
      std::string::npos);
  EXPECT_NE(error_of_profile("name: nothing\n").find("missing"), std::string::npos);
  EXPECT_NE(error_of_profile("base: dgx-1v\nnode: {mesh: [[0, 9, 1]]}\n").find("[0, 9, 1]"),
            std::string::npos);
  EXPECT_NE(error_of_profile("base: dgx-1v\nnode: {mesh: [[0, 1]]}\n").find("is no link"),
            std::string::npos);
  EXPECT_NE(
      error_of_profile("base: dgx-h100\nsource: us\nkind_of_numbers: measured\nnode: {gpus: 7.5}\n")
          .find("no count"),
      std::string::npos);
}

// Numbers of one's own that the rest of the profile does not bear: 45 GB/s of NVLink where NCCL
// would plan with 18 links of 20.6, a NIC faster than its PCIe slot, shares that are none.
TEST(OwnProfile, RatesThatNoMachineHasAreErrors) {
  const std::string head = "base: dgx-h100\nkind_of_numbers: measured\nsource: mine\n";
  for (const auto& [text, place] : std::initializer_list<std::pair<const char*, const char*>>{
           {"gpu: {nvlink_bandwidth: 45 GB/s}\n", "gpu.nvlink_bandwidth"},
           {"network: {nic_rate: 800 Gb/s}\n", "network.nic_rate"},
           {"gpu: {efficiency: {matmul_training: 1.7}}\n", "gpu.efficiency.matmul_training"},
           {"gpu: {efficiency: {memory_bound: 0.0}}\n", "gpu.efficiency.memory_bound"},
           {"gpu: {peak_bf16: 0 FLOP/s}\n", "gpu.peak_bf16"},
           {"gpu: {peak_fp8: 0 FLOP/s}\n", "gpu.peak_fp8"},
           {"collectives: {network_rate_scale: 0}\n", "collectives.network_rate_scale"}}) {
    EXPECT_NE(error_of_profile(head + text).find(place), std::string::npos)
        << error_of_profile(head + text);
  }
}

TEST(OwnProfile, DamagedTextIsRefused) {
  EXPECT_NE(error_of_profile("{\"base\": \"dgx-h1", "b.json"), "no error");
  EXPECT_NE(error_of_profile("[1, 2", "b.yaml"), "no error");
  EXPECT_NE(error_of_profile(std::string("\0\1\2", 3), "b.yaml").find("binary"), std::string::npos);
  EXPECT_NE(error_of_profile("base: dgx-h100\nbase: dgx-a100\n").find("twice"), std::string::npos);
  EXPECT_NE(error_of_profile(std::string(100000, '['), "b.yaml").find("nested"), std::string::npos);
  EXPECT_NE(error_of_profile(std::string(100000, '['), "b.json").find("nested"), std::string::npos);
  EXPECT_NE(error_of_profile(
                "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c "
                "[*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
                "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n"
                "f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n")
                .find("too many"),
            std::string::npos);
  EXPECT_NE(error_of_profile("", "b.yaml"), "no error");
  EXPECT_NE(error_of_profile("", "b.json"), "no error");
}

TEST(OwnProfile, MutatedFilesAreReadOrRefused) {
  std::uint32_t random = 1;
  const auto next = [&] { return random = random * 1664525u + 1013904223u; };
  for (int round = 0; round < 1000; ++round) {
    std::string text = kMine;
    for (int i = 0; i < 3; ++i) text[(next() >> 8) % text.size()] = static_cast<char>(next() >> 24);
    error_of_profile(text);  // any exception but InputError fails the test
  }
}

// yaml-cpp 0.7 takes this for documents without end.
TEST(ProfileReader, MalformedYamlEnds) {
  EXPECT_NE(error_of_profile(" \"mo\",\"n}\n\",\"n}\n", "a.yaml"), "no error");
}

}  // namespace
}  // namespace foreshard
