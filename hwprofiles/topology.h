#pragma once

// The machine as a graph: GPUs, switches, CPUs and NICs joined by links with a capacity per
// direction.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"
#include "hwprofiles/profile.h"

namespace foreshard {

enum class VertexKind : std::uint8_t { kGpu, kNvSwitch, kPcieSwitch, kCpu, kNic, kLeaf, kSpine };
enum class LinkKind : std::uint8_t { kNvLink, kPcie, kSocket, kNetwork };
std::string_view name_of(LinkKind kind);

/// A device of the graph. `node` is -1 for network switches.
struct TopologyVertex {
  VertexKind kind = VertexKind::kGpu;
  int node = 0;
  int index = 0;  ///< among its kind on its node
};
std::string name_of(
    const TopologyVertex& vertex);  ///< "gpu3", "nic0", "leaf2"; nodes above 0 as "n1.gpu3"

/// A link between vertices `a` and `b`; `capacity` holds for each direction alone.
struct TopologyLink {
  int a = 0, b = 0;
  LinkKind kind = LinkKind::kPcie;
  BytesPerSecond capacity;
};

/// A path: its links in order, the narrowest capacity, the kind of the narrowest link.
struct Route {
  std::vector<int> links;
  BytesPerSecond capacity;
  LinkKind narrowest = LinkKind::kPcie;
};

/// Immutable; safe to share between threads.
class Topology {
 public:
  /// Graph of `nodes` nodes of the profile (InputError for fewer than one).
  explicit Topology(const HardwareProfile& profile, int nodes = 1);
  ~Topology();
  Topology(Topology&&) noexcept;
  Topology& operator=(Topology&&) noexcept;

  std::span<const TopologyVertex> vertices() const;
  std::span<const TopologyLink> links() const;
  /// Vertex of a GPU; InternalError if there is none.
  int gpu(int node, int index) const;
  /// The way with the least transfer time (sum of 1/capacity; GPUs do not forward). Empty links if
  /// from == to.
  Route route(int from, int to) const;
  /// One node as a picture in text: one line for each vertex with its links.
  std::string draw() const;

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

/// What NCCL's rings reach between some GPUs of one node.
struct RingBandwidth {
  double bytes_per_second =
      0;          ///< Sum over the rings: the "bus bandwidth" of large ring collectives.
  int rings = 0;  ///< Graph channels of NCCL's search.
  LinkKind narrowest = LinkKind::kNvLink;
  bool chain_only =
      false;  ///< The links hold no ring, only a chain (then trees are used for all-reduce).
  double chain_bytes_per_second = 0;
};

/// Rings over the local GPUs `members` (ascending, at least two) of one node: through NVSwitch by
/// NCCL's channel search (src/graph/search.cc: the speed from a list whose multiple comes nearest
/// to the GPU's links), over a mesh by counting edge-disjoint Hamiltonian cycles, over PCIe by the
/// narrowest hop.
RingBandwidth ring_bandwidth(const HardwareProfile& profile, std::span<const int> members);

}  // namespace foreshard
