#pragma once

// Hardware profiles: what a GPU, a node and a network can do, each number with its source. Profiles
// are data; the catalogue is compiled into the library, and a user's own file (JSON or YAML,
// docs/formats/hardware.md) reads alike.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/json_fwd.h"
#include "core/units.h"
#include "hwprofiles/fact.h"

namespace foreshard {

/// Hardware generation: selects NCCL's constants and kernel families.
enum class GpuGeneration : std::uint8_t {
  kVolta,
  kTuring,
  kAmpere,
  kAda,
  kHopper,
  kBlackwell,
  kCdna
};
std::string_view name_of(GpuGeneration generation);

/// Efficiencies that a profile may leave out, and what is taken then: of the A100, whose tables are
/// the widest. Those of one cost model only are beside it (sim/cost/kernel_cost.cc).
struct UsualEfficiency {
  std::string_view key;
  double value;
};
inline constexpr UsualEfficiency kUsualEfficiencies[] = {
    {"memory_bound", 0.816},
    {"overlap_slowdown", 0.23},
    {"machine_spread", 0.06},
};

/// One GPU type. Rates are dense (no sparsity) and per device.
struct GpuProfile {
  std::string name;   ///< "h100-sxm"
  std::string title;  ///< "NVIDIA H100 SXM5 80 GB"
  GpuGeneration generation = GpuGeneration::kAmpere;
  Fact compute_capability;  ///< 9.0; absent for AMD
  Fact multiprocessors;     ///< SMs (AMD: compute units)
  Fact peak_fp32, peak_tf32, peak_fp16, peak_bf16, peak_fp8,
      peak_fp4;           ///< FLOP/s; unknown where not supported
  Fact memory;            ///< B, as sold
  Fact usable_memory;     ///< B, total that the driver reports
  Fact context_memory;    ///< B taken by the CUDA context and loaded kernels
  Fact memory_bandwidth;  ///< B/s
  Fact l2_cache;          ///< B
  Fact power_limit;       ///< W
  Fact nvlink_links;      ///< NVLink / XGMI links of one GPU; 0 without
  Fact nvlink_bandwidth;  ///< B/s of all its links, per direction, as sold
  Fact nvlink_planning;   ///< B/s that NCCL counts for one link
  Fact pcie_bandwidth;    ///< B/s of its slot, per direction, as sold
  Fact price_per_hour;    ///< USD/h, optional
  /// Achievable fractions, rates and fixed times by kernel class, as data; names and meaning in
  /// docs/formats/hardware.md ("efficiency"). Use `efficiency_or`.
  std::map<std::string, Fact> efficiency;
  /// Of those that are another chip's (`efficiency_as`): the catalogue GPU that they are known of.
  std::map<std::string, std::string> efficiency_of;

  /// Dense peak for matrix products with operands of `dtype` (float32: `tf32` chooses the tensor
  /// cores). Unknown fact where the device cannot.
  enum class Float32Math : std::uint8_t { kIeee, kTf32 };
  const Fact& peak(DType dtype, Float32Math math = Float32Math::kIeee) const;
  /// The named efficiency or nullptr.
  const Fact* find_efficiency(std::string_view key) const;
  double efficiency_or(std::string_view key, double fallback) const;
  /// The named efficiency, or the usual one of kUsualEfficiencies, which must name the key.
  double efficiency_or_usual(std::string_view key) const;
  /// What a process can allocate: driver total less context.
  Bytes allocatable_memory() const;
};

/// How the GPUs of one node reach each other.
enum class FabricKind : std::uint8_t {
  kNvSwitch,     ///< all to all through switches
  kNvLinkMesh,   ///< point-to-point links listed in `mesh` (DGX-1V cube mesh, XGMI)
  kNvLinkPairs,  ///< bridges between GPU 2i and 2i+1, PCIe otherwise
  kPcie,         ///< PCIe tree only
};
std::string_view name_of(FabricKind kind);

/// `links` point-to-point links between two GPUs of a node.
struct MeshEdge {
  int a = 0, b = 0, links = 1;
};

/// What joins the nodes.
enum class NetworkKind : std::uint8_t {
  kNone,
  kInfiniBand,
  kRoce,
  kEfa,
  kTcpx,
  kTcpxo,
  kTcp,
  kSlingshot
};
std::string_view name_of(NetworkKind kind);

/// The network as one node sees it.
struct NetworkProfile {
  NetworkKind kind = NetworkKind::kNone;
  Fact nics;              ///< per node
  Fact nic_rate;          ///< B/s per NIC and direction
  Fact nics_on_switches;  ///< 1: a NIC hangs on the PCIe switch of its GPUs, 0: on the CPU
  Fact rails;             ///< separate leaf switches that equal NIC indices share; 1 = one plane
  Fact oversubscription;  ///< capacity into the leaf over capacity out of it; 1 = full bisection
  Fact latency;           ///< s, one way, on top of NCCL's own network hop latency
  Fact call_overhead;     ///< s added once to each multi-node collective by the transport (proxy,
                          ///< plug-in)
  Fact efficiency;        ///< fraction of the NIC rate that long collectives reach
  Fact node_rate;  ///< B/s and direction that a node moves at most whatever its NICs (sockets: host
                   ///< threads); optional

  /// B/s and direction that long collectives get out of one node, oversubscription left aside.
  double usable_rate() const;
};

/// One node type.
struct NodeProfile {
  Fact gpus;   ///< GPUs of one node (of one NVLink domain for rack systems)
  Fact hosts;  ///< operating systems in it: 1, or the trays of a rack system
  FabricKind fabric = FabricKind::kPcie;
  std::vector<MeshEdge> mesh;  ///< for kNvLinkMesh
  Fact peer_bandwidth;  ///< B/s between two GPUs over PCIe, as measured or planned (NCCL's figure)
  Fact peer_to_peer;    ///< 1 if GPUs may copy directly over PCIe, 0 if through host memory
  Fact gpus_per_pcie_switch;  ///< GPUs that share one uplink to the CPU
  Fact sockets;               ///< CPU sockets
  Fact socket_bandwidth;      ///< B/s between sockets, per direction
  Fact host_to_device;        ///< B/s, pinned, one GPU
  Fact device_to_host;        ///< B/s, pinned, one GPU
  Fact host_cpu_factor;  ///< time of host dispatch relative to the reference CPU; 1 = reference
  Fact hop_overhead;     ///< s: least time of a ring's hop inside a node once it crosses nodes
  Fact host_memory;      ///< B of main memory
  Fact host_memory_bandwidth;  ///< B/s of main memory, all sockets
  Fact price_per_hour;         ///< USD/h of the whole node, optional
};

/// A machine: GPU + node + network. `nodes` is how many the name asks for (0: as many as the job
/// needs).
struct HardwareProfile {
  std::string name;  ///< as typed, e.g. "dgx-h100@400g"
  std::string title;
  std::string file;  ///< where it was read from; "catalogue" for built-in ones
  std::vector<std::string> aliases;
  int nodes = 0;
  GpuProfile gpu;
  NodeProfile node;
  NetworkProfile network;
  /// Parameters of the collective model that `calibrate` found for this machine
  /// (sim/cost/collective.h lists the names); empty for profiles that were never calibrated.
  std::map<std::string, Fact> collectives;

  int gpus_per_node() const { return static_cast<int>(node.gpus.count()); }
};

/// A job's share of machines: `gpus` GPUs on `nodes` nodes, filled node by node.
struct Cluster {
  HardwareProfile profile;
  int gpus = 0;
  int nodes = 0;
  int gpus_per_node = 0;  ///< used on each full node; the last may hold fewer
  int node_of(int rank) const { return rank / gpus_per_node; }
};

/// The profile behind what a user types after `--on`:
/// NAME: a catalogue name or alias, dgx-h100, 8x-l40s.
///
/// FILE.json, FILE.yaml: the user's own profile.
///
/// NxGPU: N GPUs of a type in its usual box, 4x-v100, 2x-a100-80 (8x-dgx-h100: N nodes).
///
/// NxGPU-RATEg: N nodes of the usual box of that GPU, NICs of RATE Gb/s, 2x-a100-80-200g.
///
/// ...@RATEg, @KxRATEg, @RATEg-roce: the network replaced; RATE Gb/s for each NIC, K NICs, kind (a
/// file of the catalogue's networks).
///
/// InputError with the nearest names otherwise.
HardwareProfile load_hardware(const std::string& name_or_file);

/// Reads a profile from text in JSON or YAML (chosen by the file name's ending, JSON unless .yaml
/// or .yml). Unknown keys, wrong units, numbers without a source and contradictions are errors.
HardwareProfile parse_hardware(std::string_view text, const std::string& file);

/// Canonical catalogue names in alphabetical order: node types and GPU types.
std::vector<std::string> hardware_names();
std::vector<std::string> gpu_names();
/// A GPU type of the catalogue by name or alias; InputError with the nearest name.
GpuProfile load_gpu(const std::string& name);

/// Places `gpus` GPUs. InputError if the profile names a fixed number of nodes that is too small,
/// or if more than one node is needed and the profile has no network.
Cluster make_cluster(const HardwareProfile& profile, int gpus);

/// Every number of a profile with its path ("gpu.memory_bandwidth"), in file order; for `describe`
/// and provenance.
struct NamedFact {
  std::string path;
  const Fact* fact;
};
std::vector<NamedFact> all_facts(const HardwareProfile& profile);

/// A page for people: numbers with sources.
std::string describe(const HardwareProfile& profile);
/// The profile as JSON that `parse_hardware` reads back unchanged.
Json to_json(const HardwareProfile& profile);

}  // namespace foreshard
