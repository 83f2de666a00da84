#pragma once

// Hand-made schedules with times that a person can add up, and a cost model that reads them from
// the schedule.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "schedules/schedule.h"
#include "sim/cost_model.h"

namespace foreshard::toy {

/// Times stand in the schedule itself: a launch has dims {device ns, host ns, percent of the
/// device's memory bandwidth}; a collective and a
/// copy take one nanosecond for each byte. Rates and links are set by the test.
class ToyCost : public CostModel {
 public:
  HostCosts host_costs;
  DeviceMemory device{Bytes(std::int64_t{1} << 40), Bytes(0), Bytes(0)};
  std::array<double, kLinkCount> capacities{100, 100, 100, 100};
  std::int64_t gpus_per_node = 8;
  /// Rate, link weights, interference and slowdown by collective kind; the last entry serves
  /// copies.
  struct Traffic {
    double rate = 0;
    std::array<double, kLinkCount> weight{};
    double interference = 0;
    double slowdown = 0;
  };
  std::array<Traffic, kCollectiveKindCount + 1> traffic;

  ToyCost() {
    host_costs.launch_queue = 1'000'000;
    host_costs.cpu_factor = 1;
  }

  LaunchCost launch(const RankProgram&, const Launch& l) const override {
    return {nanoseconds(l.dims[0]), nanoseconds(l.dims[1]), KernelClass::kMatmul,
            static_cast<double>(l.dims[2]) / 100};
  }
  TransferCost collective(const Collective& c, std::span<const std::int64_t>) const override {
    return transfer(c.bytes, traffic[static_cast<std::size_t>(c.kind)]);
  }
  TransferCost copy(const RankProgram&, const Copy& c) const override {
    return transfer(c.bytes, traffic.back());
  }
  HostCosts host() const override { return host_costs; }
  BytesPerSecond capacity(Link l) const override {
    return BytesPerSecond(capacities[static_cast<std::size_t>(l)]);
  }
  DeviceMemory memory() const override { return device; }
  std::int64_t node_of(std::int64_t rank) const override { return rank / gpus_per_node; }

 private:
  static TransferCost transfer(Bytes bytes, const Traffic& t) {
    TransferCost cost;
    cost.device = nanoseconds(bytes.value);
    cost.rate = BytesPerSecond(t.rate);
    cost.weight = t.weight;
    cost.interference = t.interference;
    cost.slowdown = t.slowdown;
    return cost;
  }
};

/// Writes a program instruction by instruction. Times in nanoseconds.
class ToyProgram {
 public:
  explicit ToyProgram(std::size_t streams = 3) {
    for (std::size_t i = 0; i < streams; ++i) p.streams.push_back({"s" + std::to_string(i), 0});
    p.names.push_back("");
  }

  RankProgram p;

  ToyProgram& launch(std::int64_t ns, int stream = 0, std::int64_t host_ns = 0,
                     Phase phase = Phase::kForward) {
    Launch l;
    l.stream = static_cast<StreamIndex>(stream);
    l.phase = phase;
    l.dims = {ns, host_ns};
    p.launches.push_back(l);
    return add(InstructionKind::kLaunch, p.launches.size() - 1);
  }
  /// Of the last launch.
  ToyProgram& memory(std::int64_t percent) {
    p.launches.back().dims[2] = percent;
    return *this;
  }
  ToyProgram& collective(CollectiveKind kind, std::int64_t ns, int stream,
                         std::uint32_t group = 0) {
    Collective c;
    c.kind = kind;
    c.bytes = Bytes(ns);
    c.stream = static_cast<StreamIndex>(stream);
    c.group = GroupId(group);
    p.collectives.push_back(c);
    return add(InstructionKind::kCollective, p.collectives.size() - 1);
  }
  ToyProgram& gather(std::int64_t ns, int stream = 1, std::uint32_t group = 0) {
    return collective(CollectiveKind::kAllGather, ns, stream, group);
  }
  ToyProgram& reduce(std::int64_t ns, int stream = 2, std::uint32_t group = 0) {
    return collective(CollectiveKind::kReduceScatter, ns, stream, group);
  }
  ToyProgram& copy(CopyDirection direction, std::int64_t ns, int stream, bool blocks = false) {
    Copy c;
    c.direction = direction;
    c.bytes = Bytes(ns);
    c.stream = static_cast<StreamIndex>(stream);
    c.blocks_host = blocks;
    p.copies.push_back(c);
    return add(InstructionKind::kCopy, p.copies.size() - 1);
  }
  std::uint32_t event() { return p.events++; }
  ToyProgram& record(std::uint32_t event, int stream) {
    return add(InstructionKind::kRecordEvent, event, stream);
  }
  ToyProgram& wait(std::uint32_t event, int stream) {
    return add(InstructionKind::kWaitEvent, event, stream);
  }
  ToyProgram& sync(std::uint32_t event) { return add(InstructionKind::kSyncEvent, event); }
  ToyProgram& sync_stream(int stream) { return add(InstructionKind::kSyncStream, 0, stream); }
  ToyProgram& sync_device() { return add(InstructionKind::kSyncDevice, 0); }
  ToyProgram& host(std::int64_t ns) {
    p.host_work.push_back({ns, 0});
    return add(InstructionKind::kHost, p.host_work.size() - 1);
  }
  std::uint32_t buffer(std::int64_t bytes, int pool = 0,
                       BufferCategory category = BufferCategory::kActivation) {
    Buffer b;
    b.bytes = Bytes(bytes);
    b.pool = static_cast<StreamIndex>(pool);
    b.category = category;
    p.buffers.push_back(b);
    return static_cast<std::uint32_t>(p.buffers.size() - 1);
  }
  ToyProgram& alloc(std::uint32_t buffer) { return add(InstructionKind::kAlloc, buffer); }
  ToyProgram& free(std::uint32_t buffer) { return add(InstructionKind::kFree, buffer); }
  ToyProgram& record_stream(std::uint32_t buffer, int stream) {
    return add(InstructionKind::kRecordStream, buffer, stream);
  }
  ToyProgram& end_init() {
    p.init = {0, size()};
    begin_ = size();
    return *this;
  }
  ToyProgram& end_step() {
    p.steps.push_back({begin_, size()});
    begin_ = size();
    return *this;
  }

  /// One stream waits for what another has done so far.
  ToyProgram& join(int waiting, int done) {
    const std::uint32_t e = event();
    record(e, done);
    return wait(e, waiting);
  }

 private:
  std::uint32_t size() const { return static_cast<std::uint32_t>(p.instructions.size()); }
  ToyProgram& add(InstructionKind kind, std::size_t id, int stream = 0) {
    p.instructions.push_back(
        {kind, static_cast<StreamIndex>(stream), 0, static_cast<std::uint32_t>(id)});
    return *this;
  }
  std::uint32_t begin_ = 0;
};

/// All ranks run `program`; one group "shard" of the whole world.
inline Schedule schedule_of(ToyProgram& program, std::int64_t world = 4) {
  if (program.p.steps.empty()) program.end_step();
  Schedule s;
  s.model = "toy";
  s.world = world;
  s.groups.push_back({"shard", world, 1});
  s.programs.push_back(program.p);
  s.program_of_rank = {0};
  return s;
}

}  // namespace foreshard::toy
