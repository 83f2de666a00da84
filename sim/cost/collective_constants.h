#pragma once

// Constants of NCCL by GPU generation and fabric. Sources: [N] NVIDIA/nccl 2.30.7 (commit
// 5067397c), src/graph/tuning.cc; [F] fitted jointly to the public nccl-tests tables of all
// machines of a generation (docs/collectives.md lists the tables and the residuals). No constant
// serves one table.

#include "hwprofiles/profile.h"

namespace foreshard {

/// Latency and rate of one protocol: time of a ring = base + steps * hop + wire bytes / rate.
struct ProtocolConstants {
  double base_us = 0;
  double hop_us = 0;
  double rate = 0;  ///< LL: GB/s, at most half of the ring's; LL128, Simple: share of the ring's
  bool enabled = true;
};

struct NvlsConstants {
  double base_us = 0;      ///< [N] 25
  double per_rank_us = 0;  ///< [F]
  double rate = 0;         ///< GB/s of buffer in an all-reduce of up to 8 GPUs [F]; 0: no NVLS
};

struct GenerationConstants {
  ProtocolConstants ll, ll128, simple;
  NvlsConstants nvls;
  /// A ring of s steps loses this many steps to hand-over each time round: rate * s / (s + loss).
  double step_loss = 0;
  int channels = 24;  ///< thread blocks of a large ring inside a node
};

/// Constants for a group whose GPUs talk over NVLink (XGMI) or, if not, over PCIe.
const GenerationConstants& collective_constants(GpuGeneration generation, bool over_nvlink);

namespace nccl {
/// Network hop latency of rings, us, LL and Simple [N].
inline constexpr double kRingNetworkLL = 2.7;
inline constexpr double kRingNetworkSimple = 14;
/// Network hop latency of trees, us, LL [N].
inline constexpr double kTreeNetworkLL = 5;
/// Least time of one hop inside a node once a ring crosses nodes, us: kernel to proxy, 1 on Intel
/// and others, 2 on AMD hosts ("hop_overhead" of the node); times 3 for Simple [N].
inline constexpr double kHopFloor = 1;
inline constexpr double kHopFloorSimple = 3;
/// What NCCL's choice of protocol over the network rests on: hop latencies inside a node and over
/// the network, us, of LL, LL128 and Simple; bandwidth of LL (several nodes, Intel) and share of
/// LL128 [N].
inline constexpr double kChoiceBase[3] = {6.6, 14, 8.4};
inline constexpr double kChoiceHop[3] = {0.6, 1.9, 3.4};
inline constexpr double kChoiceNetworkHop[3] = {2.7, 4.0, 14};
inline constexpr double kChoiceLLRate = 39;
inline constexpr double kChoiceLL128Share = 0.92;
/// Bytes for each channel before NCCL opens another (threads x threshold): Simple, LL128; LL: times
/// ranks [N].
inline constexpr double kChannelBytesSimple = 512 * 64;
inline constexpr double kChannelBytesLL128 = 640 * 8;
inline constexpr double kChannelBytesLL = 512 * 8;
/// Channels between nodes (2 x 8 graph channels) and of NVLS on Hopper and Blackwell [N].
inline constexpr int kNetworkChannels = 16;
inline constexpr int kNvlsChannelsHopper = 16;
inline constexpr int kNvlsChannelsBlackwell = 24;
/// GPUs from which NVLS beats the ring on one node (measured on H100: ring at 4, NVLS at 5;
/// ml-engineering).
inline constexpr int kFewestNvlsRanks = 5;
/// PAT: base, per rank, share of the bandwidth, divisor of the network hop [N].
inline constexpr double kPatBase = 8;
inline constexpr double kPatPerRank = 2.8;
inline constexpr double kPatRate = 0.75;
inline constexpr double kPatHopDivisor = 3.5;
/// Simple protocol's step of a channel, bytes: 4 MiB in 8 steps [N].
inline constexpr double kSimpleStep = 512 * 1024;
/// NICs that the channels of one tree reach at most: heads of NVLS and of the 16 graph channels in
/// two directions [N].
inline constexpr int kMostTreeNics = 8;
/// NVLSTree reaches this share of NVLS inside a node [F].
inline constexpr double kNvlsTreeShare = 0.95;
/// Grouped send and receive reach this share of the ring's bandwidth [F].
inline constexpr double kPeerToPeerRate = 0.955;
/// Pipeline fill over the network: fill = k * sqrt(depth * latency * transfer) up to a multiple of
/// the filled pipeline (tree) or what the latency of Simple has over that of LL (ring) [F].
inline constexpr double kTreeFill = 0.5;
inline constexpr double kTreeMostFill = 1.18;
inline constexpr double kRingFill = 0.72;
}  // namespace nccl

}  // namespace foreshard
