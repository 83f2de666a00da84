#pragma once

// How long an NCCL collective takes alone on its machine: algorithm and protocol as NCCL chooses
// among, latency, bandwidth and pipeline fill over the topology of a hardware profile.
// docs/collectives.md derives every term and constant.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"
#include "hwprofiles/profile.h"
#include "schedules/schedule.h"

namespace foreshard {

enum class CollectiveAlgorithm : std::uint8_t {
  kNone,
  kRing,
  kTree,
  kNvls,
  kNvlsTree,
  kPat,
  kPeerToPeer
};
std::string_view name_of(CollectiveAlgorithm algorithm);

enum class CollectiveProtocol : std::uint8_t { kLL, kLL128, kSimple };
std::string_view name_of(CollectiveProtocol protocol);

/// What a collective's time mostly is.
enum class CollectiveBound : std::uint8_t { kLatency, kNvLink, kPcie, kSocket, kNetwork };
std::string_view name_of(CollectiveBound bound);

/// Where the ranks of a group sit.
struct GroupPlacement {
  int ranks = 1;
  int nodes = 1;
  int most_per_node = 1;    ///< Ranks on the fullest node.
  int fewest_per_node = 1;  ///< Ranks on the emptiest node that holds any.
  std::vector<int> local;   ///< GPU indices on the fullest node, ascending.
  /// Groups alike that run at the same time through the same NICs (8 replica groups of HSDP on
  /// 8-GPU nodes: 8); 1 if the caller shares links itself.
  int concurrent = 1;
};

/// Placement of global ranks that fill nodes of `gpus_per_node` in order. `ranks` must be ascending
/// and not empty.
GroupPlacement place_group(std::span<const std::int64_t> ranks, int gpus_per_node);
/// Placement of `ranks` neighbours on as few nodes as possible, the same number on each.
GroupPlacement place_block(int ranks, int nodes);

/// The answer for one collective.
struct CollectiveCost {
  Time time;     ///< Device time from the last arrival to the end.
  Time latency;  ///< The part that does not depend on bandwidth.
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNone;
  CollectiveProtocol protocol = CollectiveProtocol::kSimple;
  CollectiveBound bound = CollectiveBound::kLatency;
  BytesPerSecond bus_bandwidth;  ///< By nccl-tests' convention.
  std::int16_t channels = 0;     ///< Thread blocks of the kernel; each holds one SM.
  double sm_share = 0;           ///< channels / SMs of the GPU.
  double nvlink_bytes = 0;       ///< Leaves one GPU over NVLink.
  double pcie_bytes = 0;         ///< Leaves one GPU over PCIe to its peers.
  double network_bytes = 0;      ///< Leaves one GPU's share of the NICs.
};

/// Fitted corrections of the model for one machine (`calibrate`); 1 leaves the catalogue's value.
struct CollectiveTuning {
  double latency = 1;          ///< LL and LL128: base and hop latency
  double small_rate = 1;       ///< LL and LL128: bandwidth
  double simple_latency = 1;   ///< Simple and NVLS: base and hop latency, pipeline fill
  double link_rate = 1;        ///< rings inside a node
  double nvls_rate = 1;        ///< NVLS inside a node
  double network_latency = 1;  ///< network hops
  double network_rate = 1;     ///< NICs
};
/// The tuning that a profile's `collectives` section holds.
CollectiveTuning tuning_of(const HardwareProfile& profile);

/// Collective times of one group on one machine. Immutable; `cost` allocates nothing and takes well
/// under 200 ns.
class CollectiveModel {
 public:
  /// InputError if the group needs several nodes and the profile has no network.
  CollectiveModel(const HardwareProfile& profile, const GroupPlacement& placement);
  CollectiveModel(const HardwareProfile& profile, const GroupPlacement& placement,
                  const CollectiveTuning& tuning);

  /// `bytes` by NCCL's convention: the gathered total of an all-gather, the input of a
  /// reduce-scatter, the buffer of an all-reduce, broadcast or reduce, one rank's whole send buffer
  /// of an all-to-all, the message of a send/receive.
  CollectiveCost cost(CollectiveKind kind, Bytes bytes) const;

  const GroupPlacement& placement() const { return placement_; }

  /// A line of the model: time = latency + wire bytes / rate (+ fill). Units: us, GB/s (= kB/us /
  /// 1000).
  struct Line {
    CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNone;
    CollectiveProtocol protocol = CollectiveProtocol::kSimple;
    CollectiveBound bound = CollectiveBound::kNvLink;
    double latency_us = 0;
    double rate = 1;  ///< GB/s of `wire` bytes
    double wire = 1;  ///< bytes on the narrowest link for each byte of the collective
    double fill_factor =
        0;  ///< fill = min(fill_factor * sqrt(latency * wire bytes / rate), most_fill_us)
    double most_fill_us = 0;
    double nvlink = 0, pcie = 0,
           network = 0;  ///< bytes leaving one GPU for each byte of the collective
    int most_channels = 1;
    double bytes_per_channel = 1;  ///< a channel more for each of these many bytes
    /// Lines of several nodes stand for all protocols; NCCL's estimates switch at these sizes.
    double ll_below = 0, ll128_below = 0;
  };
  static constexpr int kMostLines = 5;
  struct Lines {
    std::array<Line, kMostLines> line{};
    int count = 0;
    double bus_factor = 1;  ///< bus bandwidth / algorithm bandwidth
  };
  /// The lines of one kind, for explanations and tests.
  const Lines& lines(CollectiveKind kind) const { return lines_[static_cast<std::size_t>(kind)]; }

 private:
  GroupPlacement placement_;
  double multiprocessors_ = 1;
  std::array<Lines, kCollectiveKindCount> lines_{};
};

}  // namespace foreshard
