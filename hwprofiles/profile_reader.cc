#include "hwprofiles/profile_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/json.h"
#include "hwprofiles/profile_fields.h"

namespace foreshard {
namespace {

constexpr GpuGeneration kGenerations[] = {
    GpuGeneration::kVolta,  GpuGeneration::kTuring,    GpuGeneration::kAmpere, GpuGeneration::kAda,
    GpuGeneration::kHopper, GpuGeneration::kBlackwell, GpuGeneration::kCdna};
constexpr FabricKind kFabrics[] = {FabricKind::kNvSwitch, FabricKind::kNvLinkMesh,
                                   FabricKind::kNvLinkPairs, FabricKind::kPcie};
constexpr NetworkKind kNetworks[] = {
    NetworkKind::kNone, NetworkKind::kInfiniBand, NetworkKind::kRoce, NetworkKind::kEfa,
    NetworkKind::kTcpx, NetworkKind::kTcpxo,      NetworkKind::kTcp,  NetworkKind::kSlingshot};

/// Reads an enumerator by its name; keeps the present value where the key is absent.
template <typename E, std::size_t N>
void read_enum(ObjectReader& object, std::string_view key, const E (&all)[N], E& value) {
  std::vector<std::string> names;
  for (const E e : all) names.emplace_back(name_of(e));
  const auto chosen = object.choice(key, std::string(name_of(value)), names);
  for (const E e : all) {
    if (name_of(e) == chosen) value = e;
  }
}

template <typename T>
void read_facts(ObjectReader& object, std::span<const Field<T>> fields,
                const FactDefaults& defaults, T& part) {
  for (const auto& field : fields)
    read_fact(object, field.key, field.dimension, defaults, part.*field.member);
}

/// `source` and `kind` of an object serve the short-form numbers inside it.
void read_defaults(ObjectReader& object, FactDefaults& defaults) {
  defaults.source = object.string("source", defaults.source);
  const auto kind = object.choice("kind_of_numbers", "", fact_kind_names());
  if (!kind.empty()) defaults.kind = parse_fact_kind(kind);
}

void read_named_facts(const Json& json, const std::string& path, const FactDefaults& defaults,
                      std::span<const EfficiencyName> names, IssueList& issues,
                      std::map<std::string, Fact>& into) {
  ObjectReader object(json, path, issues);
  for (const auto& name : names) {
    Fact fact;
    read_fact(object, name.key, name.dimension, defaults, fact);
    if (fact.known()) into[std::string(name.key)] = fact;
  }
  object.finish();
}

void read_text(ObjectReader& object, std::string_view key, std::string& text) {
  text = object.string(key, text);
}

void read_mesh(ObjectReader& object, std::vector<MeshEdge>& mesh) {
  const Json* list = object.get("mesh");
  if (list == nullptr || list->is_null()) return;
  const std::string hint = "a list of [gpu, gpu, links]";
  if (!list->is_array()) return object.report("mesh", describe_json(*list) + " is no list", hint);
  mesh.clear();
  for (const auto& item : *list) {
    const bool fits = item.is_array() && item.size() == 3 &&
                      std::all_of(item.begin(), item.end(), [](const Json& n) {
                        return n.is_number_integer() && n.get<std::int64_t>() >= 0 &&
                               n.get<std::int64_t>() < 4096;
                      });
    if (!fits) return object.report("mesh", describe_json(item) + " is no link", hint);
    mesh.push_back({item[0].get<int>(), item[1].get<int>(), item[2].get<int>()});
  }
}

void read_node(const Json& json, FactDefaults defaults, IssueList& issues, NodeProfile& node) {
  ObjectReader object(json, "node", issues);
  read_defaults(object, defaults);
  read_enum(object, "fabric", kFabrics, node.fabric);
  read_facts(object, node_fields(), defaults, node);
  read_mesh(object, node.mesh);
  object.finish();
}

template <typename T>
void check_fields(std::span<const Field<T>> fields, const T& part, const std::string& path,
                  IssueList& issues) {
  for (const auto& field : fields) {
    const Fact& fact = part.*field.member;
    if (field.need == Field<T>::Need::kOptional) continue;
    const auto place = path + "." + std::string(field.key);
    if (!fact.known()) {
      issues.add(place, "this number is missing", "write it, or name a \"base\" that has it");
    } else if (field.need == Field<T>::Need::kPositive && fact.value <= 0) {
      issues.add(place, "must be above zero", "");
    }
  }
}

void check_counts(const HardwareProfile& machine, IssueList& issues) {
  const auto whole = [&](const char* path, const Fact& fact, double most) {
    if (!fact.known()) return;
    if (fact.value != std::floor(fact.value) || fact.value > most) {
      issues.add(path, fmt::format("{} is no count up to {}", fact.value, most), "");
    }
  };
  whole("node.gpus", machine.node.gpus, 4096);
  whole("node.hosts", machine.node.hosts, 4096);
  whole("gpu.nvlink_links", machine.gpu.nvlink_links, 1024);
  whole("network.nics", machine.network.nics, 4096);
  whole("network.rails", machine.network.rails, 4096);
  if (machine.network.efficiency.known() && machine.network.efficiency.value > 1) {
    issues.add("network.efficiency", "is above 1", "a fraction of the NIC rate");
  }
  if (machine.gpu.usable_memory.known() && machine.gpu.memory.known() &&
      machine.gpu.usable_memory.value > 1.08 * machine.gpu.memory.value) {
    issues.add("gpu.usable_memory", "is larger than the memory as sold", "");
  }
}

/// Numbers that contradict each other, or that no machine can have.
void check_rates(const HardwareProfile& machine, IssueList& issues) {
  const GpuProfile& gpu = machine.gpu;
  const double planned = gpu.nvlink_planning.value_or(0) * gpu.nvlink_links.value_or(0);
  if (gpu.nvlink_bandwidth.known() && planned > gpu.nvlink_bandwidth.value * (1 + 1e-9))
    issues.add("gpu.nvlink_bandwidth",
               fmt::format("{:.4g} GB/s is less than {} links at nvlink_planning {:.4g} GB/s",
                           gpu.nvlink_bandwidth.value * 1e-9, gpu.nvlink_links.count(),
                           gpu.nvlink_planning.value * 1e-9),
               "state nvlink_planning (what NCCL plans with for one link), too");
  for (const auto& [key, peak] :
       {std::pair("peak_fp32", &gpu.peak_fp32), std::pair("peak_tf32", &gpu.peak_tf32),
        std::pair("peak_fp16", &gpu.peak_fp16), std::pair("peak_bf16", &gpu.peak_bf16),
        std::pair("peak_fp8", &gpu.peak_fp8), std::pair("peak_fp4", &gpu.peak_fp4)}) {
    if (peak->known() && peak->value <= 0)
      issues.add(fmt::format("gpu.{}", key), "must be above zero",
                 "leave it out if the chip has no such products");
  }
  const Fact& rate = machine.network.nic_rate;
  if (rate.known() && gpu.pcie_bandwidth.known() && rate.value > gpu.pcie_bandwidth.value)
    issues.add("network.nic_rate",
               fmt::format("{:.4g} GB/s is more than the PCIe slot gives ({:.4g} GB/s)",
                           rate.value * 1e-9, gpu.pcie_bandwidth.value * 1e-9),
               "two NICs of half the rate for a card in two slots");
  for (const char* key : {"matmul_best", "matmul_fp32", "matmul_training", "memory_bound"}) {
    const Fact* share = gpu.find_efficiency(key);
    if (share != nullptr && !(share->value > 0 && share->value <= 1))
      issues.add(std::string("gpu.efficiency.") + key, fmt::format("found {:.4g}", share->value),
                 "above 0, at most 1");
  }
  for (const auto& [key, scale] : machine.collectives)
    if (!(scale.value > 0))
      issues.add("collectives." + key, fmt::format("found {:.4g}", scale.value), "above 0");
}

void check_fabric(const HardwareProfile& machine, IssueList& issues) {
  const auto& node = machine.node;
  const bool needs_links = node.fabric != FabricKind::kPcie;
  if (needs_links && machine.gpu.nvlink_links.value_or(0) <= 0) {
    issues.add("node.fabric",
               fmt::format("{} needs a GPU with links, {} has none", name_of(node.fabric),
                           machine.gpu.name),
               "use \"pcie\" or set gpu.nvlink_links");
  }
  if (needs_links && machine.gpu.nvlink_links.value_or(0) > 0 &&
      !machine.gpu.nvlink_bandwidth.known()) {
    issues.add("gpu.nvlink_bandwidth", "this number is missing",
               "bandwidth of all links, one direction");
  }
  if (node.fabric == FabricKind::kNvLinkMesh && node.mesh.empty()) {
    issues.add("node.mesh", "a mesh needs its links", "a list of [gpu, gpu, links]");
  }
  for (const auto& edge : node.mesh) {
    if (edge.a == edge.b || std::max(edge.a, edge.b) >= node.gpus.count() || edge.links < 1) {
      issues.add("node.mesh",
                 fmt::format("[{}, {}, {}] is no link between two of {} GPUs", edge.a, edge.b,
                             edge.links, node.gpus.count()),
                 "");
    }
  }
}

/// Chips of one generation differ by so much in what they reach of their peak, at the least (one
/// standard deviation): A100 PCIe against SXM 0.70 / 0.776, H100 at 500 W against 700 W 0.556 /
/// 0.63.
constexpr double kSpreadOfRelatives = 0.12;

/// Efficiencies of a chip of which nothing was measured: those of a relative, rates in proportion
/// to the dense 16-bit peak. Calibration of the relative reaches it, too.
void take_efficiencies_of(const std::string& name, const GpuProfile& relative, GpuProfile& gpu) {
  const double scale = gpu.peak_fp16.value_or(1) / relative.peak_fp16.value_or(1);
  gpu.efficiency.clear();
  gpu.efficiency_of.clear();
  for (const auto& [key, known] : relative.efficiency) {
    if (key == "machine_spread" || key == "matmul_best")
      continue;  // Of machines that were measured.
    Fact fact = known;
    if (fact.dimension == Dimension::kFlopsPerSecond) {
      fact.value *= scale;
      fact.prior *= scale;
    }
    fact.kind = FactKind::kAssumed;
    fact.source = fmt::format("as {}: {}", name, known.source);
    if (!(fact.uncertainty > kSpreadOfRelatives)) fact.uncertainty = kSpreadOfRelatives;
    const auto origin = relative.efficiency_of.find(key);
    gpu.efficiency_of[key] = origin == relative.efficiency_of.end() ? name : origin->second;
    gpu.efficiency[key] = std::move(fact);
  }
}

}  // namespace

void read_gpu(const Json& json, const std::string& path, FactDefaults defaults, BaseFinder& bases,
              IssueList& issues, GpuProfile& gpu) {
  const auto find = [&](const std::string& name, const std::string& place, GpuProfile& into) {
    const bool found = bases.gpu(name, into);
    if (!found)
      issues.add(place, "there is no GPU type \"" + name + "\"",
                 nearest_name(name, bases.known_gpus()));
    return found;
  };
  const auto start_from = [&](const std::string& name, const std::string& place) {
    find(name, place, gpu);
  };
  if (json.is_string()) return start_from(json.get<std::string>(), path);
  ObjectReader object(json, path, issues);
  if (object.has("base")) start_from(object.string("base", ""), object.path_of("base"));
  read_defaults(object, defaults);
  read_text(object, "name", gpu.name);
  read_text(object, "title", gpu.title);
  object.ignore("aliases");
  object.ignore("usual_node");
  read_enum(object, "generation", kGenerations, gpu.generation);
  read_facts(object, gpu_fields(), defaults, gpu);
  if (object.has("efficiency_as")) {
    const std::string name = object.string("efficiency_as", "");
    GpuProfile relative;
    if (find(name, object.path_of("efficiency_as"), relative))
      take_efficiencies_of(name, relative, gpu);
  }
  if (object.has("efficiency")) {
    std::map<std::string, Fact> own;
    read_named_facts(*object.get("efficiency"), object.path_of("efficiency"), defaults,
                     efficiency_names(), issues, own);
    for (auto& [key, fact] : own) {
      gpu.efficiency_of.erase(key);
      gpu.efficiency[key] = std::move(fact);
    }
  }
  object.finish();
}

void read_network(const Json& json, const std::string& path, FactDefaults defaults,
                  BaseFinder& bases, IssueList& issues, NetworkProfile& network) {
  ObjectReader object(json, path, issues);
  if (object.has("base")) {
    const auto base = object.string("base", "");
    if (!bases.network(base, network)) {
      object.report("base", "there is no network kind \"" + base + "\"",
                    fmt::format("{}", fmt::join(bases.known_networks(), ", ")));
    }
  }
  read_defaults(object, defaults);
  object.ignore("name");
  object.ignore("title");
  read_enum(object, "kind", kNetworks, network.kind);
  read_facts(object, network_fields(), defaults, network);
  object.finish();
}

void read_machine(const Json& json, BaseFinder& bases, IssueList& issues,
                  HardwareProfile& machine) {
  ObjectReader object(json, "", issues);
  if (object.has("base")) {
    const auto base = object.string("base", "");
    if (!bases.machine(base, machine)) {
      object.report("base", "there is no hardware \"" + base + "\"",
                    nearest_name(base, bases.known_machines()));
    }
    machine.name.clear();  // a machine of its own
    if (object.has("name")) machine.title = object.string("name", "");
  }
  FactDefaults defaults;
  read_defaults(object, defaults);
  read_text(object, "name", machine.name);
  read_text(object, "title", machine.title);
  machine.aliases = object.string_list("aliases").value_or(std::vector<std::string>{});
  machine.nodes = static_cast<int>(object.integer("nodes", machine.nodes, 0, 1'000'000));
  if (object.has("gpu")) read_gpu(*object.get("gpu"), "gpu", defaults, bases, issues, machine.gpu);
  if (object.has("node")) read_node(*object.get("node"), defaults, issues, machine.node);
  if (object.has("network")) {
    read_network(*object.get("network"), "network", defaults, bases, issues, machine.network);
  }
  if (object.has("collectives")) {
    read_named_facts(*object.get("collectives"), "collectives", defaults,
                     collective_parameter_names(), issues, machine.collectives);
  }
  object.finish();
}

void check_machine(const HardwareProfile& machine, IssueList& issues) {
  check_fields(gpu_fields(), machine.gpu, "gpu", issues);
  check_fields(node_fields(), machine.node, "node", issues);
  if (machine.network.kind != NetworkKind::kNone) {
    check_fields(network_fields(), machine.network, "network", issues);
  }
  check_counts(machine, issues);
  check_rates(machine, issues);
  if (issues.empty()) check_fabric(machine, issues);
}

}  // namespace foreshard
