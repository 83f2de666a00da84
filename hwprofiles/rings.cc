#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "hwprofiles/topology.h"

namespace foreshard {
namespace {

/// Largest mesh that the ring search covers; larger ones would need another method (no such machine
/// is known).
constexpr int kLargestMesh = 16;

/// Speeds that NCCL's search tries for one node, GB/s (src/graph/search.cc, 2.30.7).
std::span<const double> speed_list(GpuGeneration generation) {
  static constexpr double kOld[] = {40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3};
  static constexpr double kHopper[] = {60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3};
  static constexpr double kBlackwell[] = {90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18};
  if (generation == GpuGeneration::kBlackwell) return kBlackwell;
  if (generation == GpuGeneration::kHopper) return kHopper;
  return kOld;
}

/// Rings without peer copies go through buffers in host memory, which every GPU writes and reads at
/// the same time: 15 GB/s of 8 RTX 4090 with the stock driver, against 26.3 GB/s of a copy to the
/// device alone (hw-facts, NVIDIA/nccl-tests).
constexpr double kThroughHostShare = 15 / 26.3;

/// Most channels that NCCL's search places on one node (MAXCHANNELS / 2 after its doubling).
constexpr int kMostGraphChannels = 16;

RingBandwidth switch_rings(const GpuProfile& gpu) {
  const double total = gpu.nvlink_planning.value_or(0) * gpu.nvlink_links.value_or(0) * 1e-9;
  RingBandwidth best;
  for (const double speed : speed_list(gpu.generation)) {
    const int channels =
        std::min(kMostGraphChannels, static_cast<int>(std::floor(total / speed + 1e-9)));
    if (channels * speed * 1e9 > best.bytes_per_second) {
      best.bytes_per_second = channels * speed * 1e9;
      best.rings = channels;
    }
  }
  if (best.rings == 0) {
    best.bytes_per_second = total * 1e9;
    best.rings = 1;
  }
  return best;
}

using LinkCounts = std::array<std::array<int, kLargestMesh>, kLargestMesh>;

/// Takes edge-disjoint Hamiltonian cycles (or paths) out of a multigraph, as many as depth-first
/// search finds.
class MeshSearch {
 public:
  MeshSearch(LinkCounts links, int size, bool closed)
      : links_(links), size_(size), closed_(closed) {}

  /// The largest number of disjoint cycles (paths).
  int most() {
    best_ = 0;
    bound_ = upper_bound();
    take(0);
    return best_;
  }

 private:
  static constexpr int kBudget = 200'000;

  /// Extends the set of `found` cycles by one more, trying every start for paths and vertex 0 for
  /// cycles.
  void take(int found) {
    best_ = std::max(best_, found);
    const int starts = closed_ ? 1 : size_;
    for (int start = 0; start < starts && !done(); ++start) {
      std::array<bool, kLargestMesh> seen{};
      seen[start] = true;
      walk(start, start, 1, seen, found);
    }
  }

  void walk(int start, int at, int count, std::array<bool, kLargestMesh>& seen, int found) {
    if (done()) return;
    if (count == size_) return finish(start, at, found);
    for (int next = 0; next < size_; ++next) {
      if (seen[next] || links_[at][next] == 0) continue;
      use(at, next, -1);
      seen[next] = true;
      walk(start, next, count + 1, seen, found);
      seen[next] = false;
      use(at, next, +1);
    }
  }

  void finish(int start, int at, int found) {
    if (!closed_ || size_ == 2) return take(found + 1);
    if (links_[at][start] == 0) return;
    use(at, start, -1);
    take(found + 1);
    use(at, start, +1);
  }

  void use(int a, int b, int change) {
    links_[a][b] += change;
    links_[b][a] += change;
    ++work_;
  }
  bool done() const { return work_ > kBudget || best_ >= bound_; }

  /// A cycle takes two links at each GPU (one link in all if there are two GPUs), a path one link
  /// less than GPUs.
  int upper_bound() const {
    int least = 1 << 20;
    int total = 0;
    for (int a = 0; a < size_; ++a) {
      int degree = 0;
      for (int b = 0; b < size_; ++b) degree += links_[a][b];
      least = std::min(least, degree);
      total += degree;
    }
    if (!closed_) return total / 2 / (size_ - 1);
    return size_ == 2 ? least : least / 2;
  }

  LinkCounts links_;
  int size_;
  bool closed_;
  int bound_ = 0;
  int best_ = 0;
  long work_ = 0;
};

RingBandwidth mesh_rings(const HardwareProfile& p, std::span<const int> members) {
  LinkCounts links{};
  for (const auto& edge : p.node.mesh) {
    const auto a = std::find(members.begin(), members.end(), edge.a);
    const auto b = std::find(members.begin(), members.end(), edge.b);
    if (a == members.end() || b == members.end()) continue;
    links[a - members.begin()][b - members.begin()] += edge.links;
    links[b - members.begin()][a - members.begin()] += edge.links;
  }
  const int size = static_cast<int>(members.size());
  const double link = p.gpu.nvlink_planning.value_or(0);
  RingBandwidth result;
  const int cycles = MeshSearch(links, size, true).most();
  // A link carries both directions: a cycle of three or more GPUs is two rings, two GPUs share one
  // link as one ring.
  result.rings = size == 2 ? cycles : 2 * cycles;
  result.bytes_per_second = result.rings * link;
  if (cycles > 0) return result;
  const int chains = MeshSearch(links, size, false).most();
  result.chain_only = chains > 0;
  result.chain_bytes_per_second = chains * link;
  return result;
}

RingBandwidth pcie_rings(const HardwareProfile& p, std::span<const int> members) {
  RingBandwidth result;
  result.rings = 1;
  result.narrowest = LinkKind::kPcie;
  result.bytes_per_second = p.node.peer_bandwidth.value;
  if (p.node.peer_to_peer.value_or(1) == 0) {
    const double copy = std::min(p.node.host_to_device.value, p.node.device_to_host.value);
    result.bytes_per_second = std::min(result.bytes_per_second, kThroughHostShare * copy);
  }
  const auto socket = [&](int gpu) {
    return gpu * p.node.sockets.count() / std::max(1, p.gpus_per_node());
  };
  if (socket(members.front()) != socket(members.back()) &&
      p.node.socket_bandwidth.value < result.bytes_per_second) {
    result.bytes_per_second = p.node.socket_bandwidth.value;
    result.narrowest = LinkKind::kSocket;
  }
  return result;
}

}  // namespace

RingBandwidth ring_bandwidth(const HardwareProfile& profile, std::span<const int> members) {
  if (members.size() < 2) throw InternalError("a ring needs two GPUs");
  switch (profile.node.fabric) {
    case FabricKind::kNvSwitch:
      return switch_rings(profile.gpu);
    case FabricKind::kNvLinkPairs: {
      const bool pair = members.size() == 2 && members[0] / 2 == members[1] / 2;
      return pair ? switch_rings(profile.gpu) : pcie_rings(profile, members);
    }
    case FabricKind::kNvLinkMesh: {
      if (members.size() > kLargestMesh) return pcie_rings(profile, members);
      auto rings = mesh_rings(profile, members);
      if (rings.rings > 0) return rings;
      auto pcie = pcie_rings(profile, members);
      pcie.chain_only = rings.chain_only;
      pcie.chain_bytes_per_second = rings.chain_bytes_per_second;
      return pcie;
    }
    case FabricKind::kPcie:
      break;
  }
  return pcie_rings(profile, members);
}

}  // namespace foreshard
