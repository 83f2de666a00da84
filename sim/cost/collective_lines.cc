#include "sim/cost/collective_lines.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "hwprofiles/topology.h"

namespace foreshard {
namespace {

using Line = CollectiveModel::Line;
using Lines = CollectiveModel::Lines;
using enum CollectiveAlgorithm;
using enum CollectiveProtocol;

/// NCCL's rule for thread blocks: one for each so many bytes, up to `most`.
struct Channels {
  int most;
  double bytes;
};

void add(Lines& lines, Line line, Channels channels) {
  if (lines.count == CollectiveModel::kMostLines)
    throw InternalError("too many candidates for a collective");
  line.most_channels = channels.most;
  line.bytes_per_channel = channels.bytes;
  lines.line[static_cast<std::size_t>(lines.count++)] = line;
}

constexpr Channels kOverNetwork{nccl::kNetworkChannels, nccl::kChannelBytesSimple};

double steps_of(CollectiveKind kind, int ranks) {
  return kind == CollectiveKind::kAllReduce ? 2.0 * (ranks - 1) : ranks - 1.0;
}

/// Bytes that pass each link of a ring for each byte of the collective.
double ring_wire(CollectiveKind kind, int ranks) {
  if (kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce) return 1;
  return steps_of(kind, ranks) / ranks;
}

double with_step_loss(double rate, double steps, const GenerationConstants& c) {
  return rate * steps / (steps + c.step_loss);
}

void leave_gpu(Line& line, const CollectiveSetting& s, double bytes) {
  (s.over_nvlink ? line.nvlink : line.pcie) = bytes;
}

struct Protocol {
  CollectiveProtocol protocol;
  const ProtocolConstants& constants;
  double channel_bytes;
};

/// Ring (or, over a chain of links, tree) with each protocol inside one node.
void add_inside(Lines& lines, CollectiveKind kind, const CollectiveSetting& s) {
  const double steps = steps_of(kind, s.ranks);
  const auto& c = s.constants;
  const bool tree = s.chain > 0 && kind == CollectiveKind::kAllReduce;
  const double whole = (tree ? s.chain : s.ring) * s.tuning.link_rate;
  const Protocol protocols[] = {{kLL, c.ll, nccl::kChannelBytesLL * s.ranks},
                                {kLL128, c.ll128, nccl::kChannelBytesLL128},
                                {kSimple, c.simple, nccl::kChannelBytesSimple}};
  for (const auto& p : protocols) {
    if (!p.constants.enabled) continue;
    const bool simple = p.protocol == kSimple;
    const double latency = simple ? s.tuning.simple_latency : s.tuning.latency;
    // Simple overlaps the two halves of an all-reduce: its latency grows with the ranks, not with
    // the steps [F].
    const double hops = simple ? s.ranks - 1.0 : steps;
    double rate = whole * p.constants.rate;
    if (p.protocol == kLL) rate = std::min(p.constants.rate * s.tuning.small_rate, whole / 2);
    if (p.protocol == kLL128) rate *= s.tuning.small_rate;
    if (simple && !tree) rate = with_step_loss(rate, steps, c);
    Line line;
    line.algorithm = tree ? kTree : kRing;
    line.protocol = p.protocol;
    line.bound = tree ? CollectiveBound::kNvLink : s.inside_bound;
    line.latency_us = latency * (p.constants.base_us + hops * p.constants.hop_us);
    line.wire = tree ? 1 : ring_wire(kind, s.ranks);
    // NCCL counts half of the channels' bandwidth for a tree all-reduce (src/graph/tuning.cc).
    line.rate = tree ? rate / 2 : rate;
    leave_gpu(line, s, tree ? 2 : line.wire);
    add(lines, line, {c.channels, p.channel_bytes});
  }
}

/// NVLS all-reduce: the switch adds; each GPU sends its buffer once and its share of the result.
void add_nvls(Lines& lines, const CollectiveSetting& s) {
  const auto& nvls = s.constants.nvls;
  if (nvls.rate <= 0 || s.ranks < nccl::kFewestNvlsRanks) return;
  const double eight_ranks = 2.0 * 7 / 8;
  const double bus_cap = eight_ranks / (2.0 * (s.ranks - 1) / s.ranks);
  Line line;
  line.algorithm = kNvls;
  line.latency_us = s.tuning.simple_latency * (nvls.base_us + nvls.per_rank_us * s.ranks);
  line.rate = nvls.rate * s.tuning.nvls_rate * std::min(1.0, bus_cap);
  leave_gpu(line, s, 1 + 1.0 / s.ranks);
  const bool blackwell = s.generation == GpuGeneration::kBlackwell;
  add(lines, line,
      {blackwell ? nccl::kNvlsChannelsBlackwell : nccl::kNvlsChannelsHopper,
       nccl::kChannelBytesSimple});
}

/// Sizes at which NCCL's own estimates of the three protocols cross, for lines that stand for all
/// of them.
void set_protocol_switches(Line& line, double inner_hops, double network_hops,
                           const CollectiveSetting& s) {
  const auto estimate = [&](int p) {
    return nccl::kChoiceBase[p] + inner_hops * nccl::kChoiceHop[p] +
           network_hops * nccl::kChoiceNetworkHop[p];
  };
  const double simple = line.rate;
  const double ll = std::min(nccl::kChoiceLLRate, simple / 2);
  const double ll128 = nccl::kChoiceLL128Share * simple;
  const auto crossing = [&](int slow, double slow_rate, int fast, double fast_rate) {
    const double gained_us = line.wire * 1e-3 * (1 / slow_rate - 1 / fast_rate);
    return std::max(0.0, estimate(fast) - estimate(slow)) / gained_us;
  };
  if (s.constants.ll128.enabled) {
    line.ll_below = crossing(0, ll, 1, ll128);
    line.ll128_below = std::max(line.ll_below, crossing(1, ll128, 2, simple));
  } else {
    line.ll_below = line.ll128_below = crossing(0, ll, 2, simple);
  }
}

/// A ring over several nodes: latency of LL for small messages, that of Simple beside the bandwidth
/// of the narrower of node and NICs for large ones, as NCCL estimates both [N]; between them the
/// fill of the pipeline.
void add_network_ring(Lines& lines, CollectiveKind kind, const CollectiveSetting& s) {
  const double steps = steps_of(kind, s.ranks);
  const double crossings = steps * (s.nodes - 1) / (s.ranks - 1);
  const auto& c = s.constants;
  const double inner = with_step_loss(s.ring * s.tuning.link_rate, steps, c);
  Line line;
  line.algorithm = kRing;
  line.bound = s.network < inner ? CollectiveBound::kNetwork : s.inside_bound;
  line.latency_us =
      s.call_us +
      s.tuning.latency *
          (c.ll.base_us + (steps - crossings) * std::max(c.ll.hop_us, s.hop_floor_us)) +
      s.tuning.network_latency * crossings * (nccl::kRingNetworkLL + s.network_hop_us);
  const double simple_hop = std::max(c.simple.hop_us, nccl::kHopFloorSimple * s.hop_floor_us);
  const double simple_us =
      s.call_us + s.tuning.latency * (c.simple.base_us + (steps - crossings) * simple_hop) +
      s.tuning.network_latency * crossings * (nccl::kRingNetworkSimple + s.network_hop_us);
  line.wire = ring_wire(kind, s.ranks);
  line.rate = std::min(inner, s.network);
  line.fill_factor = s.tuning.simple_latency * nccl::kRingFill * std::sqrt(steps);
  line.most_fill_us = s.tuning.simple_latency * std::max(0.0, simple_us - line.latency_us);
  leave_gpu(line, s, s.per_node > 1 ? line.wire : 0);
  line.network = line.wire / s.per_node;
  set_protocol_switches(line, steps - crossings, crossings, s);
  add(lines, line, kOverNetwork);
}

/// Double binary tree over the nodes; inside a node a chain, or NVLS where the switch adds
/// (NVLSTree).
void add_network_tree(Lines& lines, const CollectiveSetting& s) {
  const auto& c = s.constants;
  const bool nvls = c.nvls.rate > 0 && s.per_node >= nccl::kFewestNvlsRanks;
  const double inside = nvls ? c.nvls.rate * nccl::kNvlsTreeShare * s.tuning.nvls_rate
                             : s.ring * s.tuning.link_rate / 2;
  // With two nodes each NIC carries the buffer once in each direction, with more twice: inner nodes
  // have two children.
  const double passes = s.nodes == 2 ? 1 : 2;
  const double used_nics = std::min<double>(s.nics, nccl::kMostTreeNics);
  const double network = s.network * used_nics / s.nics;
  const double chain = s.per_node - 1.0;
  Line line;
  line.algorithm = nvls ? kNvlsTree : kTree;
  line.bound = network / passes < inside ? CollectiveBound::kNetwork : s.inside_bound;
  line.latency_us =
      s.call_us + s.tuning.latency * (c.ll.base_us + 2 * chain * c.ll.hop_us) +
      s.tuning.network_latency * 2 * s.levels * (nccl::kTreeNetworkLL + s.network_hop_us);
  line.wire = 1;
  line.rate = std::min(inside, network / passes);
  const double depth = 2 * (s.levels + (nvls ? 1 : chain));
  double filled_us = depth * nccl::kSimpleStep * used_nics / network * 1e-3 +
                     2 * s.levels * nccl::kRingNetworkSimple;
  if (nvls) filled_us += c.nvls.base_us + c.nvls.per_rank_us * s.per_node;
  line.fill_factor = s.tuning.simple_latency * nccl::kTreeFill * std::sqrt(2 * (chain + s.levels));
  line.most_fill_us = s.tuning.simple_latency * nccl::kTreeMostFill * filled_us;
  leave_gpu(line, s, nvls ? 1 + 1.0 / s.per_node : s.per_node > 1 ? 2 : 0);
  line.network = passes / s.per_node;
  set_protocol_switches(line, 2 * chain, 2 * s.levels, s);
  add(lines, line, kOverNetwork);
}

/// PAT (all-gather, reduce-scatter with one rank per node): logarithmic latency at three quarters
/// of the bandwidth.
void add_pat(Lines& lines, const CollectiveSetting& s) {
  Line line;
  line.algorithm = kPat;
  line.bound = CollectiveBound::kNetwork;
  line.latency_us = s.call_us + s.tuning.latency * (nccl::kPatBase + nccl::kPatPerRank * s.ranks) +
                    s.tuning.network_latency * s.levels *
                        (nccl::kRingNetworkSimple + s.network_hop_us) / nccl::kPatHopDivisor;
  line.wire = (s.ranks - 1.0) / s.ranks;
  line.rate = s.network * nccl::kPatRate;
  line.network = line.wire;
  add(lines, line, kOverNetwork);
}

/// All-to-all as grouped sends and receives: inside the node and through the NICs at the same time.
void add_all_to_all(Lines& lines, const CollectiveSetting& s) {
  const auto& c = s.constants;
  const double inside_peers = s.per_node - 1.0;
  const double outside_peers = s.ranks - s.per_node;
  const double inside_wire = inside_peers / s.ranks;
  const double outside_wire = outside_peers / s.ranks;
  const double inside_rate = s.ring * s.tuning.link_rate * nccl::kPeerToPeerRate;
  Line line;
  line.algorithm = kPeerToPeer;
  line.latency_us = s.tuning.simple_latency * (c.simple.base_us + c.simple.hop_us * inside_peers);
  line.bound = s.inside_bound;
  line.wire = inside_wire;
  line.rate = inside_rate;
  leave_gpu(line, s, inside_wire);
  if (outside_peers > 0) {
    // One proxy operation for each remote peer, as NCCL's ring pays for each hop.
    line.latency_us += s.call_us + outside_peers * s.hop_floor_us +
                       s.tuning.network_latency * (nccl::kRingNetworkSimple + s.network_hop_us);
    line.network = outside_wire;
    if (inside_peers == 0 || outside_wire / s.one_nic > inside_wire / inside_rate) {
      line.wire = outside_wire;
      line.rate = s.one_nic;
      line.bound = CollectiveBound::kNetwork;
    }
  }
  add(lines, line, {c.channels, nccl::kChannelBytesSimple});
}

/// One message between the first and the last rank of the group.
void add_send(Lines& lines, const CollectiveSetting& s) {
  const auto& c = s.constants;
  const bool outside = s.nodes > 1;
  const Protocol protocols[] = {{kLL, c.ll, nccl::kChannelBytesLL},
                                {kSimple, c.simple, nccl::kChannelBytesSimple}};
  for (const auto& p : protocols) {
    const bool simple = p.protocol == kSimple;
    // Over several nodes the messages between neighbours in one go at the same time.
    const double inside = s.ring * s.tuning.link_rate * nccl::kPeerToPeerRate;
    const double whole = outside ? std::min(s.message, inside) : inside;
    const double hop = simple ? nccl::kRingNetworkSimple : nccl::kRingNetworkLL;
    Line line;
    line.algorithm = kPeerToPeer;
    line.protocol = p.protocol;
    line.bound = outside ? CollectiveBound::kNetwork : s.inside_bound;
    line.latency_us =
        (simple ? s.tuning.simple_latency : s.tuning.latency) *
            (p.constants.base_us + (outside ? 0 : p.constants.hop_us)) +
        (outside ? s.call_us + s.tuning.network_latency * (hop + s.network_hop_us) : 0);
    line.rate = simple ? whole : std::min(whole / 2, p.constants.rate * s.tuning.small_rate);
    if (outside) {
      line.network = 1;
    } else {
      leave_gpu(line, s, 1);
    }
    add(lines, line, {c.channels, p.channel_bytes});
  }
}

/// NICs of one node that the group may use, and one rank's share.
void set_network(CollectiveSetting& s, const HardwareProfile& profile,
                 const GroupPlacement& placement) {
  const auto& net = profile.network;
  if (net.kind == NetworkKind::kNone) {
    throw InputError({"", "network",
                      "this group needs several nodes, but " + profile.name + " has no network",
                      "such as " + profile.name + "@400g"});
  }
  const double nics = net.nics.value;
  const double gpus = profile.node.gpus.value;
  const double ranks = placement.fewest_per_node;
  const double rate =
      net.usable_rate() / nics * 1e-9 / std::max(1.0, net.oversubscription.value_or(1));
  s.nics = nics >= gpus ? std::max(1.0, ranks * nics / gpus) : std::min(ranks, nics);
  s.network = std::min(s.nics * rate, nics * rate / placement.concurrent);
  s.one_nic = s.network / ranks;
  s.message = ranks == 1 ? s.network : std::min(rate, nics * rate / placement.concurrent);
  s.network_hop_us = net.latency.value * 1e6;
  s.call_us = net.call_overhead.value * 1e6;
  s.hop_floor_us = profile.node.hop_overhead.value_or(nccl::kHopFloor * 1e-6) * 1e6;
}

}  // namespace

CollectiveSetting collective_setting(const HardwareProfile& profile,
                                     const GroupPlacement& placement,
                                     const CollectiveTuning& tuning) {
  CollectiveSetting s;
  s.ranks = placement.ranks;
  s.nodes = placement.nodes;
  s.per_node = placement.most_per_node;
  s.levels = static_cast<int>(std::floor(std::log2(std::max(1, placement.nodes))));
  s.generation = profile.gpu.generation;
  s.ring = std::numeric_limits<double>::infinity();
  s.over_nvlink = profile.node.fabric != FabricKind::kPcie;
  if (placement.local.size() >= 2) {
    const auto rings = ring_bandwidth(profile, placement.local);
    s.ring = rings.bytes_per_second * 1e-9;
    s.chain = rings.chain_only ? rings.chain_bytes_per_second * 1e-9 : 0;
    s.over_nvlink = rings.narrowest == LinkKind::kNvLink || s.chain > 0;
    s.inside_bound = rings.narrowest == LinkKind::kNvLink ? CollectiveBound::kNvLink
                     : rings.narrowest == LinkKind::kPcie ? CollectiveBound::kPcie
                                                          : CollectiveBound::kSocket;
  }
  s.constants = collective_constants(s.generation, s.over_nvlink);
  if (profile.node.fabric != FabricKind::kNvSwitch) s.constants.nvls = {};
  if (placement.nodes > 1) set_network(s, profile, placement);
  return with_tuning(s, tuning);
}

CollectiveSetting with_tuning(CollectiveSetting untuned, const CollectiveTuning& tuning) {
  untuned.tuning = tuning;
  untuned.network *= tuning.network_rate;
  untuned.one_nic *= tuning.network_rate;
  untuned.message *= tuning.network_rate;
  return untuned;
}

double line_us(const CollectiveModel::Line& line, double bytes, double& transfer_us) {
  transfer_us = bytes * line.wire / line.rate * 1e-3;
  const double fill =
      std::min(line.fill_factor * std::sqrt(line.latency_us * transfer_us), line.most_fill_us);
  return line.latency_us + transfer_us + fill;
}

double fastest_us(const CollectiveModel::Lines& lines, double bytes) {
  double best = 0;
  for (int i = 0; i < lines.count; ++i) {
    double transfer = 0;
    const double us = line_us(lines.line[static_cast<std::size_t>(i)], bytes, transfer);
    if (i == 0 || us < best) best = us;
  }
  return best;
}

Lines collective_lines(CollectiveKind kind, const CollectiveSetting& s) {
  Lines lines;
  if (s.ranks < 2) return lines;
  lines.bus_factor = ring_wire(kind, s.ranks);
  const bool gather = kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
  if (kind == CollectiveKind::kAllToAll) {
    add_all_to_all(lines, s);
  } else if (kind == CollectiveKind::kSendReceive) {
    lines.bus_factor = 1;
    add_send(lines, s);
  } else if (s.nodes == 1) {
    add_inside(lines, kind, s);
    if (kind == CollectiveKind::kAllReduce) add_nvls(lines, s);
  } else {
    add_network_ring(lines, kind, s);
    if (kind == CollectiveKind::kAllReduce) add_network_tree(lines, s);
    if (gather && s.per_node == 1) add_pat(lines, s);
  }
  return lines;
}

}  // namespace foreshard
