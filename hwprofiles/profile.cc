#include "hwprofiles/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/enum_names.h"
#include "core/error.h"
#include "core/integers.h"
#include "hwprofiles/profile_fields.h"

namespace foreshard {

std::string_view name_of(GpuGeneration generation) {
  constexpr std::string_view names[] = {"volta",  "turing",    "ampere", "ada",
                                        "hopper", "blackwell", "cdna"};
  static_assert(std::size(names) == kEnumerators<GpuGeneration>);
  return names[static_cast<int>(generation)];
}

std::string_view name_of(FabricKind kind) {
  constexpr std::string_view names[] = {"nvswitch", "nvlink-mesh", "nvlink-pairs", "pcie"};
  static_assert(std::size(names) == kEnumerators<FabricKind>);
  return names[static_cast<int>(kind)];
}

double NetworkProfile::usable_rate() const {
  const double rate = nics.value_or(0) * nic_rate.value_or(0) * efficiency.value_or(1);
  return node_rate.known() ? std::min(rate, node_rate.value) : rate;
}

std::string_view name_of(NetworkKind kind) {
  constexpr std::string_view names[] = {"none", "ib",    "roce", "efa",
                                        "tcpx", "tcpxo", "tcp",  "slingshot"};
  static_assert(std::size(names) == kEnumerators<NetworkKind>);
  return names[static_cast<int>(kind)];
}

const Fact& GpuProfile::peak(DType dtype, Float32Math math) const {
  static const Fact unknown;
  switch (dtype) {
    case DType::kFloat32:
      return math == Float32Math::kTf32 && peak_tf32.known() ? peak_tf32 : peak_fp32;
    case DType::kBFloat16:
      return peak_bf16;
    case DType::kFloat16:
      return peak_fp16;
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      return peak_fp8;
    default:
      return unknown;
  }
}

const Fact* GpuProfile::find_efficiency(std::string_view key) const {
  const auto found = efficiency.find(std::string(key));
  return found == efficiency.end() ? nullptr : &found->second;
}

double GpuProfile::efficiency_or(std::string_view key, double fallback) const {
  const Fact* fact = find_efficiency(key);
  return fact == nullptr ? fallback : fact->value_or(fallback);
}

double GpuProfile::efficiency_or_usual(std::string_view key) const {
  for (const UsualEfficiency& usual : kUsualEfficiencies)
    if (usual.key == key) return efficiency_or(key, usual.value);
  throw InternalError("no usual efficiency of the name " + std::string(key));
}

Bytes GpuProfile::allocatable_memory() const {
  return Bytes(static_cast<std::int64_t>(usable_memory.value_or(memory.value_or(0)) -
                                         context_memory.value_or(0)));
}

Cluster make_cluster(const HardwareProfile& profile, int gpus) {
  const auto refuse = [&](std::string message, std::string hint) {
    throw InputError({"--gpus", "", std::move(message), std::move(hint)});
  };
  if (gpus < 1) refuse(fmt::format("{} GPUs", gpus), "one or more");
  const int per_node = profile.gpus_per_node();
  const int nodes = ceil_div(gpus, per_node);
  if (profile.nodes > 0 && nodes > profile.nodes) {
    refuse(fmt::format("{} GPUs need {} nodes of {}, {} has {}", gpus, nodes, per_node,
                       profile.name, profile.nodes),
           fmt::format("at most {}", profile.nodes * per_node));
  }
  if (nodes > 1 && profile.network.kind == NetworkKind::kNone) {
    refuse(fmt::format("{} GPUs need {} nodes, but {} has no network", gpus, nodes, profile.name),
           "add one, such as " + profile.name + "@400g");
  }
  Cluster cluster;
  cluster.profile = profile;
  cluster.gpus = gpus;
  cluster.nodes = nodes;
  cluster.gpus_per_node = std::min(per_node, gpus);
  return cluster;
}

std::vector<NamedFact> all_facts(const HardwareProfile& profile) {
  std::vector<NamedFact> facts;
  const auto add = [&](std::string path, const Fact& fact) {
    if (fact.known()) facts.push_back({std::move(path), &fact});
  };
  for (const auto& f : gpu_fields()) add("gpu." + std::string(f.key), profile.gpu.*f.member);
  for (const auto& [key, fact] : profile.gpu.efficiency) add("gpu.efficiency." + key, fact);
  for (const auto& f : node_fields()) add("node." + std::string(f.key), profile.node.*f.member);
  for (const auto& f : network_fields())
    add("network." + std::string(f.key), profile.network.*f.member);
  for (const auto& [key, fact] : profile.collectives) add("collectives." + key, fact);
  return facts;
}

}  // namespace foreshard
