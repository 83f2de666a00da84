#pragma once

// What the event engine asks of the hardware: how long one piece of work takes alone, and what it
// shares with others. Asked before the simulation starts, never inside it: once for each shape of
// launch and collective, for every copy singly.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/op_kind.h"
#include "core/units.h"
#include "schedules/schedule.h"

namespace foreshard {

/// Links that one GPU owns a share of. Collectives and copies that run at the same time share them
/// max-min fairly.
enum class Link : std::uint8_t { kNvLink, kNetwork, kPcieIn, kPcieOut };
inline constexpr int kLinkCount = 4;
std::string_view name_of(Link link);

/// One launch alone on the device.
struct LaunchCost {
  Time device;  ///< From start to end of its kernels.
  Time host;    ///< Host thread time of the call: framework dispatch and driver.
  KernelClass kernel_class = KernelClass::kOther;
  /// Share of the device's reachable memory bandwidth that it takes while it runs alone, 0..1.
  /// Kernels of several streams of one device share that bandwidth max-min fairly.
  double memory_share = 0;
};

/// One collective or copy alone on its links.
struct TransferCost {
  Time device;          ///< From the last arrival to the end.
  Time host;            ///< Host thread time of the call.
  BytesPerSecond rate;  ///< Average rate of its flow while it runs; 0 if it shares nothing.
  /// Traffic on each of this GPU's links, in bytes for each byte of the flow.
  std::array<double, kLinkCount> weight{};
  Link bottleneck = Link::kNvLink;  ///< The link that limits it; for reports.
  /// How much longer compute kernels take while it runs, at whatever speed: 0.2 = 20 %.
  double interference = 0;
  /// How much longer it takes itself while kernels run on one of its GPUs, at full speed.
  double slowdown = 0;
};

/// Host thread time of the calls that launch no work.
struct HostCosts {
  Time alloc, free, record_stream;   ///< Allocator calls served from its cache.
  Time record_event, wait_event;     ///< Driver calls.
  Time sync;                         ///< Return of a blocking call after the device is done.
  Time segment_alloc, segment_free;  ///< cudaMalloc, cudaFree.
  double cpu_factor = 1;  ///< HostWork of the schedule takes this many times its reference.
  std::int64_t launch_queue =
      1024;  ///< Unfinished device operations that the driver accepts before the host blocks.
};

/// Memory of one device that the allocator does not see.
struct DeviceMemory {
  Bytes capacity;          ///< What the driver reports.
  Bytes context;           ///< CUDA context and loaded kernels.
  Bytes communicator;      ///< Buffers of one communicator; taken once for each group that is used.
  Bytes host_capacity{0};  ///< Main memory of the node; 0: unknown.
  std::int64_t ranks_per_node = 1;  ///< That share it.
};

/// The seam between simulator and hardware. Implementations are immutable and safe to share between
/// threads.
class CostModel {
 public:
  virtual ~CostModel() = default;
  virtual LaunchCost launch(const RankProgram& program, const Launch& launch) const = 0;
  /// `ranks` are the members of the group that runs it, ascending.
  virtual TransferCost collective(const Collective& collective,
                                  std::span<const std::int64_t> ranks) const = 0;
  virtual TransferCost copy(const RankProgram& program, const Copy& copy) const = 0;
  virtual HostCosts host() const = 0;
  /// One GPU's share of a link, per direction.
  virtual BytesPerSecond capacity(Link link) const = 0;
  virtual DeviceMemory memory() const = 0;
  /// Time of each step that no instruction explains; added to the step as idle time.
  virtual Time step_overhead() const { return Time(0); }
  /// Node that holds a rank: ranks are alike only if their groups lie alike on the nodes.
  virtual std::int64_t node_of(std::int64_t rank) const = 0;
  /// Kind of machine that holds a rank, where a cluster has several.
  virtual std::int64_t machine_of(std::int64_t /*rank*/) const { return 0; }
};

}  // namespace foreshard
