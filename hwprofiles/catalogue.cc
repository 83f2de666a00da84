#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "core/json.h"
#include "core/parse_number.h"
#include "core/text.h"
#include "hwprofiles/calibration.h"
#include "hwprofiles/embedded_catalogue.h"
#include "hwprofiles/keep_gpus.h"
#include "hwprofiles/profile.h"
#include "hwprofiles/profile_reader.h"
#include "hwprofiles/short_name.h"
#include "hwprofiles/spelling.h"
#include "hwprofiles/yaml_json.h"

namespace foreshard {
namespace {

/// Depth of "base" chains; the catalogue needs three, a longer one is a loop.
constexpr int kLongestBaseChain = 8;

/// The file of a folder by canonical name or alias.
const EmbeddedFile* find_file(std::string_view folder, const std::string& name) {
  const auto files = embedded_catalogue();
  for (const auto& file : files) {
    if (file.folder == folder && file.name == name) return &file;
  }
  const auto quoted = "\"" + name + "\"";
  for (const auto& file : files) {
    if (file.folder != folder || file.text.find(quoted) == std::string_view::npos) continue;
    const Json json = parse_json(file.text, std::string(file.name));
    const auto aliases = json.find("aliases");
    if (aliases == json.end()) continue;
    for (const auto& alias : *aliases) {
      if (alias == name) return &file;
    }
  }
  return nullptr;
}

std::vector<std::string> names_in(std::string_view folder) {
  std::vector<std::string> names;
  for (const auto& file : embedded_catalogue()) {
    if (file.folder == folder) names.emplace_back(file.name);
  }
  return names;
}

class Catalogue final : public BaseFinder {
 public:
  bool gpu(const std::string& name, GpuProfile& into) override {
    const auto* file = find_file("gpus", name);
    if (file == nullptr) return false;
    into = GpuProfile{};
    read(*file,
         [&](const Json& json, IssueList& issues) { read_gpu(json, "", {}, *this, issues, into); });
    apply_catalogue_calibrations(file->name, into);
    return true;
  }
  bool machine(const std::string& name, HardwareProfile& into) override {
    const auto* file = find_file("nodes", name);
    if (file == nullptr || ++depth_ > kLongestBaseChain) return false;
    into = HardwareProfile{};
    into.file = "catalogue";
    read(*file,
         [&](const Json& json, IssueList& issues) { read_machine(json, *this, issues, into); });
    --depth_;
    return true;
  }
  bool network(const std::string& name, NetworkProfile& into) override {
    const auto* file = find_file("networks", name);
    if (file == nullptr) return false;
    into = NetworkProfile{};
    read(*file, [&](const Json& json, IssueList& issues) {
      read_network(json, "", {}, *this, issues, into);
    });
    return true;
  }
  std::vector<std::string> known_gpus() override { return names_in("gpus"); }
  std::vector<std::string> known_machines() override { return names_in("nodes"); }
  std::vector<std::string> known_networks() override { return names_in("networks"); }

 private:
  template <typename Read>
  void read(const EmbeddedFile& file, Read reader) {
    const auto name = fmt::format("catalogue {}/{}", file.folder, file.name);
    const Json json = parse_json(file.text, name);
    IssueList issues(name);
    if (json.value("name", std::string()) != file.name)
      issues.add("name", fmt::format("differs from the file's name \"{}\"", file.name));
    reader(json, issues);
    issues.throw_if_any();
  }
  int depth_ = 0;
};

ShortName short_name(const std::string& typed) {
  return parse_short_name(typed, names_in("networks"));
}

void replace_network(Catalogue& catalogue, const std::string& typed, const ShortName& name,
                     HardwareProfile& machine) {
  if (!name.rate) return;
  const auto source = "the name " + typed;
  auto kind = name.network_kind;
  if (kind.empty() && machine.network.kind == NetworkKind::kNone) kind = "ib";
  const auto nics = machine.network.nics.known() ? machine.network.nics.value : 1.0;
  if (!kind.empty()) {
    const Fact rails = machine.network.rails;
    if (!catalogue.network(kind, machine.network)) {
      const auto kinds = names_in("networks");
      bad_machine_name(typed, "there is no network kind \"" + kind + "\"",
               fmt::format("{}", fmt::join(kinds, ", ")));
    }
    if (rails.known()) machine.network.rails = rails;
  }
  const auto fact = [&](double value, Dimension dimension) {
    return Fact{value, dimension, FactKind::kAssumed, source};
  };
  machine.network.nics = fact(name.nics > 0 ? name.nics : nics, Dimension::kCount);
  machine.network.nic_rate = fact(*name.rate * 1e9 / 8, Dimension::kBytesPerSecond);
  if (const Fact& slot = machine.gpu.pcie_bandwidth;
      slot.known() && machine.network.nic_rate.value > slot.value)
    bad_machine_name(typed,
             fmt::format("a NIC of {:.0f} Gb/s gets no more than {:.0f} Gb/s through its PCIe slot",
                         *name.rate, slot.value * 8 / 1e9),
             "a lower rate; several NICs (@2x200g); a profile file for a card in two slots");
}

/// GPUs that servers hold; more of a type are several of its usual boxes.
constexpr int kUsualBox = 8;

std::string usual_node(const EmbeddedFile& gpu) {
  return parse_json(gpu.text, std::string(gpu.name)).value("usual_node", std::string());
}

/// The machine that the multiplier and base of a short name mean; nothing if the base is unknown.
std::optional<HardwareProfile> machine_of(Catalogue& catalogue, const std::string& typed,
                                          const ShortName& name) {
  HardwareProfile machine;
  if (catalogue.machine(name.base, machine)) {
    machine.nodes = name.multiplier;
    return machine;
  }
  const auto* gpu = find_file("gpus", name.base);
  if (gpu == nullptr) return std::nullopt;
  if (const std::string node = usual_node(*gpu); !catalogue.machine(node, machine)) {
    throw InputError(Issue{
        fmt::format("catalogue gpus/{}", gpu->name), "usual_node",
        node.empty() ? "is missing" : fmt::format("there is no machine \"{}\"", node),
        "the machine of catalogue/nodes that \"4x-" + std::string(gpu->name) + "\" stands for"});
  }
  const int box = machine.gpus_per_node();
  const int n = name.multiplier;
  if (name.rate_by_dash) {
    machine.nodes = n;
  } else if (n > 0 && n <= box) {
    keep_gpus(machine, n);
  } else if (n > box && box > 1 && box < kUsualBox) {
    bad_machine_name(typed,
             fmt::format("the catalogue's only machine with this GPU, {}, holds {} of them",
                         machine.name, box),
             fmt::format("{}x-{} for {} nodes of it{}, at most {}x-{}, or a profile file of your "
                         "machine with \"gpu\": \"{}\"",
                         n / box, machine.name, n / box,
                         n % box == 0 ? "" : fmt::format(" ({} GPUs)", n / box * box), box,
                         name.base, name.base));
  } else if (n > box && n % box == 0) {
    machine.nodes = n / box;
  } else if (n > box) {
    bad_machine_name(typed, fmt::format("{} GPUs do not fill nodes of {}", n, box),
             fmt::format("a multiple of {}", box));
  }
  return machine;
}

[[noreturn]] void unknown_name(const std::string& typed, const std::string& base) {
  auto candidates = names_in("nodes");
  const auto gpus = names_in("gpus");
  candidates.insert(candidates.end(), gpus.begin(), gpus.end());
  const auto nearest = nearest_name(base, candidates);
  bad_machine_name(typed, "there is no hardware \"" + base + "\"",
           (nearest.empty() ? std::string() : "nearest: " + nearest + "; ") +
               "`foreshard hw` lists all, FILE.json or FILE.yaml reads your own");
}

/// The machine that a catalogue name or a short name (parse_short_name) stands for.
std::optional<HardwareProfile> named_machine(Catalogue& catalogue, const std::string& typed) {
  ShortName whole;
  whole.base = typed;
  std::optional<HardwareProfile> machine = machine_of(catalogue, typed, whole);
  if (!machine) {
    const auto name = short_name(typed);
    machine = machine_of(catalogue, typed, name);
    if (machine) replace_network(catalogue, typed, name, *machine);
  }
  if (machine) machine->name = typed;
  return machine;
}

/// The machine of a name as people and drivers write it; a memory that was said and is not part of
/// the catalogue's name must be the GPU's (sold sizes are rounded: 7 %).
std::optional<HardwareProfile> spelled_machine(Catalogue& catalogue, const std::string& typed) {
  for (const Spelling& s : spellings_of(typed)) {
    std::optional<HardwareProfile> machine = named_machine(catalogue, s.name);
    if (!machine) continue;
    const double gb = machine->gpu.memory.value_or(0) / 1e9;
    if (s.memory_gb && std::abs(*s.memory_gb - gb) > 0.07 * gb) continue;
    return machine;
  }
  return std::nullopt;
}

/// "a100 is taken as a100-80; there is also a100-40" where `name` is `base` with a size.
std::string smaller_sizes(std::string_view folder, const std::string& base,
                          const std::string& name) {
  const auto size_in = [&](const std::string& n) {
    return n.rfind(base + "-", 0) == 0 ? parse_number<double>(n.substr(base.size() + 1)) : std::nullopt;
  };
  const auto taken = size_in(name);
  if (!taken) return "";
  std::string others;
  for (const std::string& n : names_in(folder))
    if (const auto size = size_in(n); size && *size < *taken)
      others += (others.empty() ? "" : ", ") + n;
  return others.empty() ? ""
                        : fmt::format("{} is taken as {}; there is also {}", base, name, others);
}

bool looks_like_file(const std::string& text) {
  return text.ends_with(".json") || text.ends_with(".yaml") || text.ends_with(".yml") ||
         text.find('/') != std::string::npos;
}

/// "a100.yaml@400g", "4x-a100.yaml": the file without what only catalogue names take.
std::string file_within(const std::string& typed) {
  std::string file = typed.substr(0, typed.rfind('@'));
  const std::size_t digits = file.find_first_not_of("0123456789");
  if (digits > 0 && digits != std::string::npos && file.compare(digits, 2, "x-") == 0)
    file.erase(0, digits + 2);
  std::error_code ignored;
  const bool file_of_another_name =
      file != typed && looks_like_file(file) && std::filesystem::exists(file, ignored);
  return file_of_another_name && !std::filesystem::exists(typed, ignored) ? file : "";
}

}  // namespace

HardwareProfile parse_hardware(std::string_view text, const std::string& file) {
  Catalogue catalogue;
  HardwareProfile machine;
  IssueList issues(file);
  const Json json = parse_json_or_yaml(text, file);
  if (json.is_object() && json.contains("generation") && !json.contains("gpu")) {
    issues.add("generation", "this file describes a GPU, not a machine",
               "put it under \"gpu\" of a machine: {\"base\": \"dgx-h100\", \"gpu\": {...}}");
    issues.throw_if_any();
  }
  read_machine(json, catalogue, issues, machine);
  machine.file = file;
  if (machine.name.empty()) machine.name = std::filesystem::path(file).stem().string();
  if (issues.empty()) check_machine(machine, issues);
  issues.throw_if_any();
  return machine;
}

void keep_gpus(HardwareProfile& machine, int gpus) {
  const int had = machine.gpus_per_node();
  if (gpus == had) return;
  const auto source = fmt::format("{} of the {} GPUs of {}", gpus, had, machine.name);
  machine.node.gpus =
      Fact{static_cast<double>(gpus), Dimension::kCount, FactKind::kAssumed, source};
  if (machine.network.nics.known() && machine.network.nics.value > 1) {
    const double nics = std::max(1.0, std::floor(machine.network.nics.value * gpus / had));
    machine.network.nics = Fact{nics, Dimension::kCount, FactKind::kAssumed, source};
  }
  std::erase_if(machine.node.mesh, [&](const MeshEdge& e) { return std::max(e.a, e.b) >= gpus; });
  if (machine.node.fabric == FabricKind::kNvLinkMesh && machine.node.mesh.empty()) {
    machine.node.fabric = FabricKind::kPcie;
  }
}

HardwareProfile load_hardware(const std::string& name_or_file) {
  if (const std::string file = file_within(name_or_file); !file.empty())
    bad_machine_name(name_or_file, "Nx- and @RATEg go with names of the catalogue, not with profile files",
             fmt::format("\"nodes\" and \"network\" of a copy of {}", file));
  if (looks_like_file(name_or_file))
    return parse_hardware(read_text_file(name_or_file), name_or_file);
  Catalogue catalogue;
  const auto typed = lower_case(name_or_file);
  std::optional<HardwareProfile> machine = named_machine(catalogue, typed);
  if (!machine) machine = spelled_machine(catalogue, typed);
  if (!machine) unknown_name(typed, short_name(typed).base);
  IssueList issues("catalogue");
  check_machine(*machine, issues);
  issues.throw_if_any();
  return *machine;
}

std::string size_taken(const std::string& typed) {
  const auto text = lower_case(typed);
  if (looks_like_file(text)) return "";
  std::vector<std::string> names{text};
  for (const Spelling& s : spellings_of(text))
    if (!s.memory_gb) names.push_back(s.name);  // Else the size was said.
  for (const std::string& name : names) {
    for (const std::string& base : {name, short_name(name).base}) {
      for (const char* folder : {"nodes", "gpus"})
        if (const auto* file = find_file(folder, base))
          return smaller_sizes(folder, base, std::string(file->name));
    }
  }
  return "";
}

std::vector<std::string> hardware_names() { return names_in("nodes"); }
std::vector<std::string> gpu_names() { return names_in("gpus"); }

GpuProfile load_gpu(const std::string& name) {
  Catalogue catalogue;
  GpuProfile gpu;
  if (!catalogue.gpu(lower_case(name), gpu)) {
    const auto nearest = nearest_name(lower_case(name), gpu_names());
    throw InputError({"", "", "there is no GPU type \"" + name + "\"",
                      nearest.empty() ? "`foreshard hw` lists all" : "nearest: " + nearest});
  }
  return gpu;
}

}  // namespace foreshard
