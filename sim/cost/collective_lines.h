#pragma once

// Builds the lines of a collective model: one candidate (algorithm, protocol) each.

#include "sim/cost/collective.h"
#include "sim/cost/collective_constants.h"

namespace foreshard {

/// What the lines rest on: the group, the rates around it (GB/s), the constants, the corrections.
struct CollectiveSetting {
  int ranks = 1, nodes = 1, per_node = 1;
  int levels = 0;  ///< floor(log2(nodes)): depth of NCCL's trees between nodes
  bool over_nvlink = false;
  GpuGeneration generation = GpuGeneration::kAmpere;
  CollectiveBound inside_bound = CollectiveBound::kNvLink;
  double ring = 0;     ///< rings inside a node; infinite with one rank per node
  double chain = 0;    ///< chain inside a node where it holds no ring; 0 otherwise
  double network = 0;  ///< NICs of one node that the group may use, all together
  double one_nic = 0;  ///< one rank's share of them
  double message = 0;  ///< of one message that leaves a node alone: send/receive with the next rank
  double nics = 0;
  double network_hop_us = 0;  ///< on top of NCCL's hop latency
  double call_us = 0;         ///< once for each collective
  double hop_floor_us = nccl::kHopFloor;  ///< least time of an inner hop of a ring over nodes
  GenerationConstants constants;
  CollectiveTuning tuning;
};
CollectiveSetting collective_setting(const HardwareProfile& profile,
                                     const GroupPlacement& placement,
                                     const CollectiveTuning& tuning);

/// All candidates of one kind of collective.
CollectiveModel::Lines collective_lines(CollectiveKind kind, const CollectiveSetting& setting);
/// Time of one candidate, us; `transfer_us` receives the part that bandwidth explains.
double line_us(const CollectiveModel::Line& line, double bytes, double& transfer_us);
/// Time of the fastest candidate, us; 0 without candidates (a group of one rank).
double fastest_us(const CollectiveModel::Lines& lines, double bytes);
/// The same setting under other corrections (rates of the network included).
CollectiveSetting with_tuning(CollectiveSetting untuned, const CollectiveTuning& tuning);

}  // namespace foreshard
