#pragma once

// What a machine says about itself: `nvidia-smi topo -m` and the topology file that NCCL writes
// (NCCL_TOPO_DUMP_FILE).

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hwprofiles/profile.h"

namespace foreshard {

/// The node that such a file describes. Unknown values are absent.
struct ImportedTopology {
  int gpus = 0;
  FabricKind fabric = FabricKind::kPcie;
  int links_per_gpu = 0;       ///< NVLinks of one GPU; 0 without
  std::vector<MeshEdge> mesh;  ///< point-to-point links, for kNvLinkMesh
  int gpus_per_pcie_switch = 1;
  int sockets = 1;
  int nics = 0;
  std::optional<bool> nics_on_switches;  ///< That GPUs hang on, too; else on the CPU.
  std::optional<double> nic_rate;        ///< B/s and direction of one NIC
  std::optional<double> pcie_rate;       ///< B/s and direction of a GPU's slot
  std::optional<double> compute_capability;
  std::vector<std::string> notes;  ///< what the file leaves open
};

/// The matrix of `nvidia-smi topo -m` (colour codes and legend are skipped). InputError for text
/// without a matrix, missing or asymmetric cells, unknown words.
ImportedTopology parse_smi_topology(std::string_view text, const std::string& file);

/// NCCL's topology XML. InputError for malformed or foreign XML, document types, files without
/// GPUs.
ImportedTopology parse_nccl_topology_xml(std::string_view text, const std::string& file);

/// `base` with the node that was imported: counts, fabric, links; numbers get the source `source`
/// and kind "measured"; its name is the file's. InputError if the base's GPUs cannot be those of
/// the file. Rates that the file does not state stay those of `base` (a link keeps its rate, the
/// sum follows the links).
HardwareProfile with_topology(HardwareProfile base, const ImportedTopology& topology,
                              const std::string& source);

}  // namespace foreshard
