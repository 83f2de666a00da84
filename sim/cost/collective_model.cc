#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/enum_names.h"
#include "core/error.h"
#include "core/integers.h"
#include "sim/cost/collective.h"
#include "sim/cost/collective_lines.h"

namespace foreshard {
std::string_view name_of(CollectiveAlgorithm algorithm) {
  constexpr std::string_view names[] = {"none",     "ring", "tree",        "NVLS",
                                        "NVLSTree", "PAT",  "peer-to-peer"};
  static_assert(std::size(names) == kEnumerators<CollectiveAlgorithm>);
  return names[static_cast<int>(algorithm)];
}

std::string_view name_of(CollectiveProtocol protocol) {
  constexpr std::string_view names[] = {"LL", "LL128", "Simple"};
  static_assert(std::size(names) == kEnumerators<CollectiveProtocol>);
  return names[static_cast<int>(protocol)];
}

std::string_view name_of(CollectiveBound bound) {
  constexpr std::string_view names[] = {"latency", "NVLink", "PCIe", "socket link", "network"};
  static_assert(std::size(names) == kEnumerators<CollectiveBound>);
  return names[static_cast<int>(bound)];
}

GroupPlacement place_group(std::span<const std::int64_t> ranks, int gpus_per_node) {
  if (ranks.empty() || gpus_per_node < 1)
    throw InternalError("a group without ranks or nodes without GPUs");
  GroupPlacement placement;
  placement.ranks = static_cast<int>(ranks.size());
  placement.nodes = 0;
  placement.most_per_node = 0;
  placement.fewest_per_node = placement.ranks;
  for (std::size_t first = 0; first < ranks.size();) {
    const std::int64_t node = ranks[first] / gpus_per_node;
    std::size_t last = first;
    while (last < ranks.size() && ranks[last] / gpus_per_node == node) ++last;
    const int here = static_cast<int>(last - first);
    ++placement.nodes;
    placement.fewest_per_node = std::min(placement.fewest_per_node, here);
    if (here > placement.most_per_node) {
      placement.most_per_node = here;
      placement.local.clear();
      for (std::size_t i = first; i < last; ++i) {
        placement.local.push_back(static_cast<int>(ranks[i] % gpus_per_node));
      }
    }
    first = last;
  }
  return placement;
}

GroupPlacement place_block(int ranks, int nodes) {
  if (nodes < 1 || ranks < nodes) throw InternalError("fewer ranks than nodes");
  GroupPlacement placement;
  placement.ranks = ranks;
  placement.nodes = nodes;
  placement.most_per_node = ceil_div(ranks, nodes);
  placement.fewest_per_node = ranks / nodes;
  for (int i = 0; i < placement.most_per_node; ++i) placement.local.push_back(i);
  return placement;
}

CollectiveTuning tuning_of(const HardwareProfile& profile) {
  CollectiveTuning tuning;
  const auto read = [&](const char* key, double& value) {
    const auto found = profile.collectives.find(key);
    if (found != profile.collectives.end() && found->second.value > 0) value = found->second.value;
  };
  read("latency_scale", tuning.latency);
  read("small_message_rate_scale", tuning.small_rate);
  read("simple_latency_scale", tuning.simple_latency);
  read("link_rate_scale", tuning.link_rate);
  read("nvls_rate_scale", tuning.nvls_rate);
  read("network_latency_scale", tuning.network_latency);
  read("network_rate_scale", tuning.network_rate);
  return tuning;
}

CollectiveModel::CollectiveModel(const HardwareProfile& profile, const GroupPlacement& placement)
    : CollectiveModel(profile, placement, tuning_of(profile)) {}

CollectiveModel::CollectiveModel(const HardwareProfile& profile, const GroupPlacement& placement,
                                 const CollectiveTuning& tuning)
    : placement_(placement),
      multiprocessors_(std::max(1.0, profile.gpu.multiprocessors.value_or(1))) {
  const auto setting = collective_setting(profile, placement, tuning);
  for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
    lines_[static_cast<std::size_t>(kind)] =
        collective_lines(static_cast<CollectiveKind>(kind), setting);
  }
}

CollectiveCost CollectiveModel::cost(CollectiveKind kind, Bytes bytes) const {
  const Lines& all = lines(kind);
  CollectiveCost cost;
  if (all.count == 0) return cost;
  const auto size = static_cast<double>(std::max<std::int64_t>(bytes.value, 0));
  const Line* best = nullptr;
  double best_us = 0;
  double best_transfer = 0;
  for (int i = 0; i < all.count; ++i) {
    const Line& line = all.line[static_cast<std::size_t>(i)];
    double transfer = 0;
    const double us = line_us(line, size, transfer);
    if (best != nullptr && us >= best_us) continue;
    best = &line;
    best_us = us;
    best_transfer = transfer;
  }
  cost.time = from_seconds(best_us * 1e-6);
  cost.latency = from_seconds(best->latency_us * 1e-6);
  cost.algorithm = best->algorithm;
  cost.protocol = best->protocol;
  if (size < best->ll128_below) cost.protocol = CollectiveProtocol::kLL128;
  if (size < best->ll_below) cost.protocol = CollectiveProtocol::kLL;
  cost.bound = 2 * best_transfer < best_us ? CollectiveBound::kLatency : best->bound;
  cost.bus_bandwidth = BytesPerSecond(size * all.bus_factor / best_us * 1e6);
  cost.channels = static_cast<std::int16_t>(std::clamp(
      std::ceil(size / best->bytes_per_channel), 1.0, static_cast<double>(best->most_channels)));
  cost.sm_share = cost.channels / multiprocessors_;
  cost.nvlink_bytes = size * best->nvlink;
  cost.pcie_bytes = size * best->pcie;
  cost.network_bytes = size * best->network;
  return cost;
}

}  // namespace foreshard
