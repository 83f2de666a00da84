#include "cli/import_topology.h"

#include <fmt/format.h>

#include "cli/output.h"
#include "core/atomic_file.h"
#include "core/json.h"
#include "hwprofiles/import_topology.h"
#include "hwprofiles/topology.h"
#include "study/job.h"

namespace foreshard::cli {
namespace {

Json json_of(const ImportedTopology& t) {
  Json out = {{"gpus", t.gpus},
              {"fabric", name_of(t.fabric)},
              {"links_per_gpu", t.links_per_gpu},
              {"gpus_per_pcie_switch", t.gpus_per_pcie_switch},
              {"sockets", t.sockets},
              {"nics", t.nics},
              {"nics_on_switches", or_null(t.nics_on_switches)},
              {"nic_bytes_per_s", or_null(t.nic_rate)},
              {"pcie_bytes_per_s", or_null(t.pcie_rate)},
              {"compute_capability", or_null(t.compute_capability)},
              {"notes", t.notes}};
  out["mesh"] = Json::array();
  for (const MeshEdge& e : t.mesh) out["mesh"].push_back({e.a, e.b, e.links});
  return out;
}

std::string text_of(const std::string& file, const ImportedTopology& t) {
  std::string out =
      fmt::format("{}: {} GPU{}, {}", file, t.gpus, t.gpus == 1 ? "" : "s", name_of(t.fabric));
  if (t.links_per_gpu > 0) out += fmt::format(" of {} links a GPU", t.links_per_gpu);
  out += fmt::format(", {} to a PCIe switch, {} socket{}, {} NIC{}\n", t.gpus_per_pcie_switch,
                     t.sockets, t.sockets == 1 ? "" : "s", t.nics, t.nics == 1 ? "" : "s");
  if (t.nic_rate) out += fmt::format("  NIC {:.0f} Gb/s\n", *t.nic_rate * 8e-9);
  if (t.pcie_rate)
    out += fmt::format("  PCIe {:.1f} GB/s a slot and direction\n", *t.pcie_rate * 1e-9);
  for (const std::string& note : t.notes) out += "  note: " + note + "\n";
  return out;
}

/// What the file leaves open and the profile takes from its base.
std::string kept_of_base(const HardwareProfile& p, const ImportedTopology& t,
                         const std::string& base) {
  if (p.network.kind == NetworkKind::kNone) return "";
  if (t.nics == 0) return fmt::format("  note: NICs are those of {}: {}\n", base, network_text(p));
  return t.nic_rate ? ""
                    : fmt::format("  note: the NICs' {:.0f} Gb/s are those of {}\n",
                                  p.network.nic_rate.value * 8e-9, base);
}

}  // namespace

int import_topology(Arguments& a) {
  if (a.has("output") && !a.has("on"))
    a.report("on", "is missing",
             "the machine whose other numbers the profile takes, e.g. --on dgx-h100");
  a.check();
  const std::string file = a.positional(1), text = read_text_file(file);
  const ImportedTopology t = a.positional(0) == "topo-m" ? parse_smi_topology(text, file)
                                                         : parse_nccl_topology_xml(text, file);
  std::optional<HardwareProfile> profile;
  if (a.has("on")) profile = with_topology(load_hardware(a.text("on")), t, file);
  if (a.has("output")) write_file_atomically(a.text("output"), to_json(*profile).dump(1) + "\n");
  if (a.flag("json")) return print_json(json_of(t)), kOk;
  std::string out = text_of(file, t);
  if (profile) out += kept_of_base(*profile, t, a.text("on")) + "\n" + Topology(*profile, 1).draw();
  if (a.has("output")) out += fmt::format("wrote {0}; use it with --on {0}\n", a.text("output"));
  return print(out), kOk;
}

}  // namespace foreshard::cli
