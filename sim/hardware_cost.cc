#include "sim/hardware_cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "sim/cost/collective.h"
#include "sim/cost/collective_constants.h"
#include "sim/cost/gpu_spread.h"
#include "sim/cost/host_cost.h"
#include "sim/cost/kernel_cost.h"

namespace foreshard {
namespace {

constexpr double kLongestCopy = 2e6;  // s: keeps absurd sizes inside the range of Time
constexpr double kUnlimited = 1e15;   // B/s: a link that the machine does not have is never used

class HardwareCostModel final : public CostModel {
 public:
  HardwareCostModel(const Cluster& cluster, const CostParameters& parameters)
      : cluster_(cluster),
        parameters_(parameters),
        kernels_(cluster_.profile.gpu, parameters),
        host_(parameters.host, cpu_factor()) {
    slowest_ = slowest_gpu_factor(speed_spread_of(gpu(), parameters), cluster.gpus);
    find_capacities();
    find_network_state();
  }

  LaunchCost launch(const RankProgram& program, const Launch& l) const override {
    if (program.streams[l.stream].on_host)
      return {host_kernel(l), host_.launch(l), kernel_class_of(l.op)};
    const Time device(
        static_cast<std::int64_t>(static_cast<double>(kernels_.time(l).value) * slowest_));
    return {device, host_.launch(l), kernel_class_of(l.op), kernels_.memory_share(l, device)};
  }

  TransferCost collective(const Collective& c, std::span<const std::int64_t> ranks) const override {
    if (c.launched_together.value > 0) return share_of_launch(c, ranks);
    const CollectiveModel& model = model_for(ranks);
    CollectiveCost cost = model.cost(c.kind, c.bytes);
    if (model.placement().nodes > 1)
      cost.time = from_seconds(to_seconds(cost.time) * state_[static_cast<std::size_t>(c.kind)]);
    TransferCost t;
    t.device = cost.time;
    t.host = host_.collective();
    const double widest = std::max({cost.nvlink_bytes, cost.pcie_bytes, cost.network_bytes});
    if (widest > 0 && cost.time.value > 0) {
      t.rate = BytesPerSecond(widest / to_seconds(cost.time));
      t.weight[index(Link::kNvLink)] = cost.nvlink_bytes / widest;
      t.weight[index(Link::kNetwork)] = cost.network_bytes / widest;
      t.weight[index(Link::kPcieIn)] = t.weight[index(Link::kPcieOut)] = cost.pcie_bytes / widest;
    }
    t.bottleneck = bottleneck(cost);
    t.interference = interference(std::max(ring_load(t.rate.per_second),
                                           model.placement().nodes > 1 ? channel_load(cost) : 0));
    t.slowdown = parameters_.interference.transfer_slowdown * ring_load(t.rate.per_second);
    return t;
  }

  TransferCost copy(const RankProgram&, const Copy& c) const override {
    TransferCost t;
    t.host = host_.copy();
    if (c.direction == CopyDirection::kDeviceToDevice) {
      t.device = kernels_.memory_bound(c.bytes * 2, 1);
      return t;
    }
    const Link link = c.direction == CopyDirection::kHostToDevice ? Link::kPcieIn : Link::kPcieOut;
    double rate = capacity_[index(link)];
    if (c.pageable) rate = std::min(rate, parameters_.links.pageable_rate);
    const double wire = static_cast<double>(c.bytes.value) / rate;
    t.device = parameters_.links.copy_latency + from_seconds(std::min(wire, kLongestCopy));
    t.rate =
        BytesPerSecond(static_cast<double>(c.bytes.value) / std::max(to_seconds(t.device), 1e-12));
    t.weight[index(link)] = 1;
    t.bottleneck = link;
    return t;
  }

  HostCosts host() const override {
    const HostParameters& p = parameters_.host;
    const auto us = [](double n) { return from_seconds(n * 1e-6); };
    HostCosts h;  // allocator calls served from the cache are part of each op's measured dispatch
    h.record_event = us(p.record_event_us);
    h.wait_event = us(p.wait_event_us);
    h.sync = us(p.sync_us);
    h.segment_alloc = us(p.segment_alloc_us);
    h.segment_free = us(p.segment_free_us);
    h.cpu_factor = cpu_factor();
    h.launch_queue = p.launch_queue;
    return h;
  }

  BytesPerSecond capacity(Link link) const override {
    return BytesPerSecond(capacity_[index(link)]);
  }

  DeviceMemory memory() const override {
    const GpuProfile& gpu = cluster_.profile.gpu;
    DeviceMemory m;
    m.capacity =
        Bytes(static_cast<std::int64_t>(gpu.usable_memory.value_or(gpu.memory.value_or(0))));
    m.context = Bytes(static_cast<std::int64_t>(gpu.context_memory.value_or(0)));
    const int local = std::min(cluster_.gpus, cluster_.gpus_per_node);
    m.host_capacity =
        Bytes(static_cast<std::int64_t>(cluster_.profile.node.host_memory.value_or(0)));
    m.ranks_per_node = std::max(1, local);
    if (local > 1) {
      const CollectiveModel model(cluster_.profile, place_block(local, 1));
      const CollectiveCost large = model.cost(CollectiveKind::kAllGather, Bytes(1'000'000'000));
      m.communicator =
          Bytes(static_cast<std::int64_t>(large.channels * parameters_.memory.bytes_per_channel));
    }
    return m;
  }

  Time step_overhead() const override { return parameters_.step.fixed; }

  std::int64_t node_of(std::int64_t rank) const override {
    return rank / std::max(cluster_.gpus_per_node, 1);
  }

 private:
  /// Its bytes' share of what one collective of all the bytes costs. NCCL gives the collectives of a
  /// group to one kernel, which spreads their bytes over its channels (src/enqueue.cc:
  /// scheduleCollTasksToPlan): rings of other roots run side by side, and the latency is paid once.
  TransferCost share_of_launch(const Collective& c, std::span<const std::int64_t> ranks) const {
    Collective all = c;
    all.bytes = std::exchange(all.launched_together, Bytes(0));
    TransferCost t = collective(all, ranks);
    const double share =
        static_cast<double>(c.bytes.value) / static_cast<double>(c.launched_together.value);
    t.device = from_seconds(to_seconds(t.device) * share);
    t.host = from_seconds(to_seconds(t.host) * share);
    return t;
  }

  /// A CPU kernel: its traffic at this process's share of host memory.
  Time host_kernel(const Launch& l) const {
    const HostKernelParameters& p = parameters_.host_kernels;
    const double sharing = std::max(1, std::min(cluster_.gpus, cluster_.gpus_per_node));
    const double rate =
        cluster_.profile.node.host_memory_bandwidth.value_or(p.unknown_memory_bandwidth) *
        p.memory_share;
    return from_seconds(
        std::min(static_cast<double>((l.read + l.written).value) * sharing / rate, kLongestCopy));
  }

  /// How much slower the network is than the model, by kind: from bus bandwidths that a run
  /// measured over all of its ranks.
  void find_network_state() {
    state_.fill(1);
    if (cluster_.nodes < 2) return;
    std::vector<std::int64_t> all(static_cast<std::size_t>(cluster_.gpus));
    std::iota(all.begin(), all.end(), 0);
    const GroupPlacement placement = place_group(all, cluster_.gpus_per_node);
    const LinkParameters::MeasuredBus& bus = parameters_.links.measured;
    const std::pair<CollectiveKind, double> measured[] = {
        {CollectiveKind::kAllGather, bus.all_gather},
        {CollectiveKind::kReduceScatter, bus.reduce_scatter},
        {CollectiveKind::kAllReduce, bus.all_reduce}};
    for (const auto& [kind, rate] : measured) {
      if (rate <= 0) continue;
      const CollectiveModel model(cluster_.profile, placement);
      const CollectiveCost cost = model.cost(kind, Bytes(std::llround(bus.bytes)));
      state_[static_cast<std::size_t>(kind)] = cost.bus_bandwidth.per_second / rate;
    }
  }

  static std::size_t index(Link link) { return static_cast<std::size_t>(link); }

  const GpuProfile& gpu() const { return cluster_.profile.gpu; }
  double cpu_factor() const { return cluster_.profile.node.host_cpu_factor.value_or(1); }

  void find_capacities() {
    const HardwareProfile& p = cluster_.profile;
    const LinkParameters& links = parameters_.links;
    const double gpus = std::max(1, p.gpus_per_node());
    capacity_.fill(kUnlimited);
    if (p.gpu.nvlink_bandwidth.value_or(0) > 0) {
      capacity_[index(Link::kNvLink)] = p.gpu.nvlink_bandwidth.value * links.nvlink_share;
    }
    if (p.network.nic_rate.known() && p.network.nics.known()) {
      capacity_[index(Link::kNetwork)] = p.network.usable_rate() / gpus;
    }
    const double slot = p.gpu.pcie_bandwidth.value_or(0) * links.pcie_share;
    const double shared =
        std::clamp<double>(p.node.gpus_per_pcie_switch.value_or(1), 1, std::max(1, cluster_.gpus));
    const auto pcie = [&](const Fact& measured) {
      double rate = measured.value_or(slot);
      if (slot > 0)
        rate = std::min(rate, slot / shared);  // all GPUs of a switch copy at the same time
      if (p.node.host_memory_bandwidth.known())
        rate = std::min(rate, p.node.host_memory_bandwidth.value / gpus);
      return rate > 0 ? rate : kUnlimited;
    };
    capacity_[index(Link::kPcieIn)] = pcie(p.node.host_to_device);
    capacity_[index(Link::kPcieOut)] = pcie(p.node.device_to_host);
  }

  /// A transfer's rate as a share of full NVLink ring speed.
  double ring_load(double rate) const {
    const InterferenceParameters& p = parameters_.interference;
    const double nvlink = gpu().nvlink_bandwidth.value_or(0);
    const double full =
        nvlink > 0 ? nvlink * p.ring_share : gpu().memory_bandwidth.value * p.memory_share;
    return std::min(1.0, rate / full);
  }
  /// Thread blocks of a collective over several nodes, which hold their multiprocessors however
  /// slow the network is, as a share of those at full NVLink ring speed. NCCL opens two for each
  /// NIC.
  double channel_load(const CollectiveCost& cost) const {
    const double blocks =
        std::min<double>(cost.channels, 2 * cluster_.profile.network.nics.value_or(1));
    return std::min(1.0, blocks / collective_constants(gpu().generation, true).channels);
  }
  double interference(double load) const {
    return gpu().efficiency_or_usual("overlap_slowdown") * parameters_.interference.scale * load;
  }

  static Link bottleneck(const CollectiveCost& cost) {
    switch (cost.bound) {
      case CollectiveBound::kNetwork:
        return Link::kNetwork;
      case CollectiveBound::kPcie:
      case CollectiveBound::kSocket:
        return Link::kPcieOut;
      case CollectiveBound::kNvLink:
        return Link::kNvLink;
      case CollectiveBound::kLatency:
        break;
    }
    if (cost.network_bytes > 0) return Link::kNetwork;
    return cost.pcie_bytes > cost.nvlink_bytes ? Link::kPcieOut : Link::kNvLink;
  }

  const CollectiveModel& model_for(std::span<const std::int64_t> ranks) const {
    GroupPlacement placement = place_group(ranks, std::max(cluster_.gpus_per_node, 1));
    if (placement.nodes > 1) {
      placement.concurrent =
          std::max(1, cluster_.gpus_per_node / std::max(1, placement.most_per_node));
    }
    const auto key = std::tuple(placement.ranks, placement.nodes, placement.most_per_node,
                                placement.fewest_per_node, placement.local);
    const std::lock_guard lock(mutex_);
    auto found = models_.find(key);
    if (found == models_.end()) found = models_.try_emplace(key, cluster_.profile, placement).first;
    return found->second;
  }

  Cluster cluster_;
  CostParameters parameters_;
  KernelCostModel kernels_;
  HostCostModel host_;
  double slowest_ = 1;
  std::array<double, kLinkCount> capacity_{};
  std::array<double, kCollectiveKindCount> state_{};
  mutable std::mutex mutex_;
  mutable std::map<std::tuple<int, int, int, int, std::vector<int>>, CollectiveModel> models_;
};

}  // namespace

std::unique_ptr<CostModel> make_cost_model(const Cluster& cluster,
                                           const CostParameters& parameters) {
  return std::make_unique<HardwareCostModel>(cluster, parameters);
}

SimulationResult simulate(const Schedule& schedule, const Cluster& cluster,
                          const SimulationOptions& options, const CostParameters& parameters) {
  if (schedule.world > cluster.gpus) {
    throw InputError(Issue{"schedule", "world", "has " + std::to_string(schedule.world) + " ranks",
                           "at most the " + std::to_string(cluster.gpus) + " GPUs of the cluster"});
  }
  const HardwareCostModel cost(cluster, parameters);
  return simulate(schedule, cost, options);
}

}  // namespace foreshard
