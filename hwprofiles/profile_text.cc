#include <fmt/format.h>

#include "core/json.h"
#include "hwprofiles/fact_text.h"
#include "hwprofiles/profile.h"
#include "hwprofiles/profile_fields.h"

namespace foreshard {
namespace {

template <typename T>
void add_facts(Json& json, std::span<const Field<T>> fields, const T& part) {
  for (const auto& field : fields) {
    const Fact& fact = part.*field.member;
    if (fact.known()) json[std::string(field.key)] = fact_to_json(fact);
  }
}

Json named_facts(const std::map<std::string, Fact>& facts) {
  Json json = Json::object();
  for (const auto& [key, fact] : facts) json[key] = fact_to_json(fact);
  return json;
}

Json gpu_json(const GpuProfile& gpu) {
  Json json = {{"name", gpu.name}, {"title", gpu.title}, {"generation", name_of(gpu.generation)}};
  add_facts(json, gpu_fields(), gpu);
  if (!gpu.efficiency.empty()) json["efficiency"] = named_facts(gpu.efficiency);
  return json;
}

Json node_json(const NodeProfile& node) {
  Json json = {{"fabric", name_of(node.fabric)}};
  add_facts(json, node_fields(), node);
  if (!node.mesh.empty()) {
    json["mesh"] = Json::array();
    for (const auto& edge : node.mesh)
      json["mesh"].push_back(Json::array({edge.a, edge.b, edge.links}));
  }
  return json;
}

std::string fabric_line(const HardwareProfile& p) {
  const auto link = format_fact(p.gpu.nvlink_bandwidth);
  switch (p.node.fabric) {
    case FabricKind::kNvSwitch:
      return fmt::format("NVSwitch, {} a GPU and direction", link);
    case FabricKind::kNvLinkMesh:
      return fmt::format("point-to-point links, {} a GPU and direction", link);
    case FabricKind::kNvLinkPairs:
      return fmt::format("bridges in pairs ({}), PCIe otherwise ({})", link,
                         format_fact(p.node.peer_bandwidth));
    case FabricKind::kPcie:
      return fmt::format("PCIe, {} between two GPUs{}", format_fact(p.node.peer_bandwidth),
                         p.node.peer_to_peer.value_or(1) > 0 ? "" : ", through host memory");
  }
  return {};
}

std::string network_line(const NetworkProfile& network) {
  if (network.kind == NetworkKind::kNone) return "none";
  return fmt::format("{} x {:.6g} Gb/s {}, {:.0f} rail{}, oversubscription {:.3g}",
                     network.nics.count(), network.nic_rate.value * 8e-9, name_of(network.kind),
                     network.rails.value_or(1), network.rails.value_or(1) > 1 ? "s" : "",
                     network.oversubscription.value_or(1));
}

}  // namespace

Json to_json(const HardwareProfile& profile) {
  Json json = {{"name", profile.name}, {"title", profile.title}};
  if (profile.nodes > 0) json["nodes"] = profile.nodes;
  json["gpu"] = gpu_json(profile.gpu);
  json["node"] = node_json(profile.node);
  if (profile.network.kind != NetworkKind::kNone) {
    Json network = {{"kind", name_of(profile.network.kind)}};
    add_facts(network, network_fields(), profile.network);
    json["network"] = std::move(network);
  }
  if (!profile.collectives.empty()) json["collectives"] = named_facts(profile.collectives);
  return json;
}

std::string describe(const HardwareProfile& profile) {
  std::string text = fmt::format("{}: {}\n", profile.name, profile.title);
  const bool has_bf16 = profile.gpu.peak_bf16.known();
  text +=
      fmt::format("  GPU      {} x {}, {} at {}, {} {}\n", profile.gpus_per_node(),
                  profile.gpu.title, format_fact(profile.gpu.memory),
                  format_fact(profile.gpu.memory_bandwidth), has_bf16 ? "bf16" : "fp16 (no bf16)",
                  format_fact(has_bf16 ? profile.gpu.peak_bf16 : profile.gpu.peak_fp16));
  text += fmt::format("  inside   {}\n", fabric_line(profile));
  text += fmt::format("  outside  {}\n\n", network_line(profile.network));
  for (const auto& [path, fact] : all_facts(profile)) {
    text += fmt::format("  {:<52} {:>14}  {:<10}  {}\n", path, format_fact(*fact),
                        name_of(fact->kind), fact->source);
  }
  return text;
}

}  // namespace foreshard
