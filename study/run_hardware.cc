#include "study/run_hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "hwprofiles/keep_gpus.h"
#include "study/run_words.h"

namespace foreshard {
namespace {

/// Sustained products of a power-limited part go with the power to this; assumed, as between
/// H100's 500 and 700 W parts.
constexpr double kPowerExponent = 0.4;
/// The same of parts whose tensor cores accumulate fp32 at half rate and are seldom short of power:
/// an RTX 3090 at 280 of 350 W keeps 95 % (Puget Systems, quad RTX 3090, wattage limited, 2020).
constexpr double kHalfRatePowerExponent = 0.23;
/// "power limited" without a number; assumed.
constexpr double kUnstatedLimit = 0.75;
/// B/s: between four and eight lanes of PCIe 3 (3.2 and 6.4 GB/s), and how far off it may be.
constexpr double kSlowPcie = 4.5e9, kSlowPcieSd = 0.35;

/// GeForce parts: dense bf16 with fp32 accumulation at twice the rate of fp32 lanes, where the same
/// chip on a professional board has four times.
bool half_rate_accumulation(const GpuProfile& gpu) {
  return gpu.peak_bf16.value_or(0) > 0 && gpu.peak_bf16.value < 3 * gpu.peak_fp32.value_or(0);
}

/// The table's name of a GPU without its remarks: "RTX4090 (PCIe4 x16)".
std::string gpu_name(const MeasuredRun& run) { return run.gpu.substr(0, run.gpu.find(" (")); }

/// The machine that public tables mean by the name of a GPU; else whatever the catalogue knows by
/// it. Empty if it knows nothing.
std::string box_of(const MeasuredRun& run) {
  static const std::vector<std::pair<const char*, const char*>> kBoxes = {
      {"A100-80GB", "dgx-a100-80"},
      {"A100-40GB", "dgx-a100-40"},
      {"A800-80GB", "hgx-a800"},
      {"H100-96GB", "hgx-h100-96"},
      {"H100 (8x, variant not stated", "hgx-h100-96"},
      {"H100", "dgx-h100"},
      {"H200", "hgx-h200"},
      {"B200", "dgx-b200"},
      {"GB200", "gb200-nvl72"},
      {"GB300", "gb300-nvl72"},
      {"MI300X", "8x-mi300x-node"},
      {"V100-16GB", "dgx-1v-16"},
      {"V100-32GB-SXM3", "dgx-2"},
      {"V100-32GB", "dgx-1v"},
      {"RTX3090", "8x-rtx3090"},
      {"RTX4090", "8x-rtx4090"},
      {"A5000", "8x-rtx-a5000"},
      {"RTX6000Ada", "8x-rtx-6000-ada"}};
  const std::string name = gpu_name(run);
  const bool other_form = contains(name, "PCIe") || contains(name, "NVL");
  for (const auto& [gpu, box] : kBoxes) {
    if (!other_form && run.gpu.starts_with(gpu)) return box;
  }
  try {
    return load_hardware(name).name;
  } catch (const InputError&) {
    return {};
  }
}

/// The network that a row states as the ending of a machine's name: "RoCE 4x100 Gb/s per node" is
/// "@4x100g-roce", "800 Gb/s per node" eight NICs of 100. Empty where it gives no rate.
std::string network_of(const std::string& link) {
  std::size_t unit = link.find(" Gb/s");
  double factor = 1;
  if (unit == std::string::npos) unit = link.find(" Tb/s"), factor = 1000;
  if (unit == std::string::npos || unit == 0) return {};
  const std::size_t from = link.find_last_not_of("0123456789.x", unit - 1) + 1;
  const std::string number = link.substr(from, unit - from);
  int nics = 0;
  double rate = 0;
  if (std::sscanf(number.c_str(), "%dx%lf", &nics, &rate) != 2) {
    if (std::sscanf(number.c_str(), "%lf", &rate) != 1) return {};
    rate *= factor;
    const bool roce = contains(link, "RoCE");
    if (contains(link, "per GPU")) {
      nics = 8;
    } else if (rate >= 800 || roce) {
      nics = 8, rate /= 8;
    } else {
      nics = std::max(1, static_cast<int>(rate / 100)), rate = 100;
    }
  }
  const char* kind = contains(link, "RoCE") ? "-roce" : contains(link, "EFA") ? "-efa" : "";
  return fmt::format("@{}x{:.0f}g{}", nics, rate, kind);
}

}  // namespace

std::string hardware_of_run(const MeasuredRun& run, std::vector<std::string>& assumptions) {
  std::string name = box_of(run);
  if (name.empty()) return {};
  if (contains(run.gpu, "not stated"))
    assumptions.push_back(
        "GPU variant not stated: the 96 GB one at 500 W of other tables of that software");
  if (*run.n_gpus > run.gpus_per_node.value_or(8)) {
    const std::string network = network_of(run.inter_node_link);
    name += network;
    const std::string& link = run.inter_node_link;
    if (network.empty() && (link.empty() || contains(link, "not stated")))
      assumptions.push_back("network of the usual box (not stated)");
  }
  return name;
}

bool names_other_gpu(const std::string& text, const GpuProfile& gpu) {
  std::string name = gpu.name;
  std::replace(name.begin(), name.end(), ' ', '-');
  const std::vector<std::string> words = parts_of(name, '-');
  // The chip's own word: "6000" of "rtx-6000-ada", "a100" of "a100-80".
  const auto chip = std::find_if(words.begin(), words.end(), [](const std::string& word) {
    return word.find_first_of("0123456789") != std::string::npos;
  });
  return !text.empty() && chip != words.end() && !contains_any_case(text, *chip);
}

void apply_stated_nodes(const MeasuredRun& run, HardwareProfile& hardware) {
  const std::int64_t node_gpus = run.gpus_per_node.value_or(hardware.gpus_per_node());
  if (*run.n_gpus > node_gpus && node_gpus < hardware.gpus_per_node() &&
      !contains(run.inter_node_link, "NVL72"))
    keep_gpus(hardware, static_cast<int>(node_gpus));
}

void apply_stated_machine(const MeasuredRun& run, HardwareProfile& hardware,
                          std::vector<std::string>& assumptions) {
  if (contains(run.inter_node_link, "no P2P")) {
    hardware.node.fabric = FabricKind::kPcie;
    hardware.node.peer_to_peer =
        Fact{0, Dimension::kCount, FactKind::kAssumed, "the row: no peer access"};
  }
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
    const double exponent =
        half_rate_accumulation(hardware.gpu) ? kHalfRatePowerExponent : kPowerExponent;
    if (share != hardware.gpu.efficiency.end()) {
      share->second.value *= std::pow(watts / limit, exponent);
      share->second.prior *= std::pow(watts / limit, exponent);
    }
    assumptions.push_back(fmt::format("{:.0f} of {:.0f} W{}: products at their ratio to the {}",
                                      watts, limit, unstated ? " (limit not stated)" : "",
                                      exponent));
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
