#include "study/run_hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "core/text.h"

namespace foreshard {
namespace {

/// Sustained products of a power-limited part go with the power to this; assumed, as between
/// H100's 500 and 700 W parts.
constexpr double kPowerExponent = 0.4;
/// "power limited" without a number; assumed.
constexpr double kUnstatedLimit = 0.75;
/// B/s: between four and eight lanes of PCIe 3 (3.2 and 6.4 GB/s), and how far off it may be.
constexpr double kSlowPcie = 4.5e9, kSlowPcieSd = 0.35;

}  // namespace

std::string hardware_of_run(const MeasuredRun& run, std::vector<std::string>& assumptions) {
  static const std::vector<std::pair<const char*, const char*>> kBoxes = {
      {"A100-80GB", "dgx-a100-80"},
      {"A100-40GB", "dgx-a100-40"},
      {"A800-80GB", "hgx-a800"},
      {"H100-96GB", "hgx-h100-96"},
      {"H100 (8x, variant not stated", "hgx-h100-96"},
      {"H100-80GB", "dgx-h100"},
      {"H100", "dgx-h100"},
      {"H200", "hgx-h200"},
      {"B200", "dgx-b200"},
      {"GB200", "gb200-nvl72"},
      {"GB300", "gb300-nvl72"},
      {"MI300X", "8x-mi300x-node"},
      {"V100-16GB", "dgx-1v-16"},
      {"V100-32GB", "dgx-1v"},
      {"RTX3090", "8x-rtx3090"},
      {"RTX4090", "8x-rtx4090"},
      {"A5000", "8x-rtx-a5000"},
      {"RTX6000Ada", "8x-rtx-6000-ada"},
      {"L40S", "8x-l40s"},
      {"T4", "4x-t4"}};
  const char* box = nullptr;
  for (const auto& [gpu, name] : kBoxes) {
    if (run.gpu.starts_with(gpu) && (box == nullptr || std::string(gpu) == "H100")) {
      if (box == nullptr) box = name;
    }
  }
  if (box == nullptr) return {};
  if (contains(run.gpu, "not stated"))
    assumptions.push_back(
        "GPU variant not stated: the 96 GB one at 500 W of other tables of that software");
  std::string name = box;
  if (*run.n_gpus > run.gpus_per_node.value_or(8)) {
    int nics = 0, rate = 0;
    if (std::sscanf(run.inter_node_link.c_str(), "RoCE %dx%d", &nics, &rate) == 2) {
      name += fmt::format("@{}x{}g-roce", nics, rate);
    } else if (std::sscanf(run.inter_node_link.c_str(), "RoCE %d", &rate) == 1) {
      name += fmt::format("@8x{}g-roce", rate / 8);
    } else if (std::sscanf(run.inter_node_link.c_str(), "InfiniBand %d", &rate) == 1 ||
               (std::sscanf(run.inter_node_link.c_str(), "%d Gb/s (per node", &rate) == 1)) {
      name += rate >= 800 ? fmt::format("@8x{}g", rate / 8)
                          : fmt::format("@{}x100g", std::max(1, rate / 100));
    } else if (std::sscanf(run.inter_node_link.c_str(), "RDMA %d Gb/s per GPU", &rate) == 1) {
      name += fmt::format("@8x{}g", rate);
    } else if (run.inter_node_link.empty()) {
      assumptions.push_back("network of the usual box (not stated)");
    }
  }
  return name;
}

void apply_stated_machine(const MeasuredRun& run, HardwareProfile& hardware,
                          std::vector<std::string>& assumptions) {
  const double limit = hardware.gpu.power_limit.value_or(0);
  const std::size_t bracket = run.gpu.find('(');
  const bool unstated = contains(run.gpu, "power limited");
  double watts = unstated ? kUnstatedLimit * limit : 0;
  int read = 0;  // Only of "(280 W", not of "(8x".
  if (!unstated && bracket != std::string::npos)
    std::sscanf(run.gpu.c_str() + bracket, "(%lf W%n", &watts, &read);
  if (!unstated && read == 0) watts = 0;
  if (watts > 0 && watts < limit) {
    const auto share = hardware.gpu.efficiency.find("matmul_training");
    if (share != hardware.gpu.efficiency.end()) {
      share->second.value *= std::pow(watts / limit, kPowerExponent);
      share->second.prior *= std::pow(watts / limit, kPowerExponent);
    }
    assumptions.push_back(fmt::format("{:.0f} of {:.0f} W{}: products at their ratio to the {}",
                                      watts, limit, unstated ? " (limit not stated)" : "",
                                      kPowerExponent));
  }
  if (contains(run.notes, "slow PCIe")) {
    NodeProfile& node = hardware.node;
    for (Fact* rate : {&node.peer_bandwidth, &node.host_to_device, &node.device_to_host}) {
      rate->value = kSlowPcie;
      rate->uncertainty = kSlowPcieSd;
    }
    assumptions.push_back(
        fmt::format("slow PCIe lanes (rate not stated): {:.1f} GB/s, between PCIe 3 x4 and x8",
                    kSlowPcie / 1e9));
  }
}

}  // namespace foreshard
