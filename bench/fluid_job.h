#pragma once

// One job for two simulators: 32 equal blocks, 404 MB gathered each, compute of 1.66 TFLOP forward
// and twice that backward at 400 TFLOP/s, at most two gathers ahead, one communication stream a
// rank, 50 GB/s and 2 us to the neighbour. A collective is one fluid flow from each rank to the
// next.

#include <cstdint>
#include <vector>

#include "schedules/schedule.h"
#include "sim/cost_model.h"

namespace foreshard::bench {

struct FluidJob {
  int blocks = 32, prefetch = 2;
  std::int64_t block_bytes = 404'000'000;
  double forward_flop = 1.66e12, speed = 400e12, bandwidth = 50e9, latency_s = 2e-6;
  double transfer_bytes(std::int64_t ranks) const {
    return static_cast<double>(block_bytes) * static_cast<double>(ranks - 1) /
           static_cast<double>(ranks);
  }
};

/// The job's hardware: flows of full rate that own one link a rank; kernels as their FLOPs say.
class FluidCost final : public CostModel {
 public:
  FluidCost(const FluidJob& job, std::int64_t ranks) : job_(job), ranks_(ranks) {}
  LaunchCost launch(const RankProgram&, const Launch& l) const override {
    return {from_seconds(static_cast<double>(l.flops.value) / job_.speed), Time(0),
            KernelClass::kMatmul};
  }
  TransferCost collective(const Collective&, std::span<const std::int64_t>) const override {
    TransferCost t;
    t.device = from_seconds(job_.latency_s + job_.transfer_bytes(ranks_) / job_.bandwidth);
    t.rate = BytesPerSecond(job_.bandwidth);
    t.weight[static_cast<std::size_t>(Link::kNvLink)] = 1;
    return t;
  }
  TransferCost copy(const RankProgram&, const Copy&) const override { return {}; }
  HostCosts host() const override {
    HostCosts h;
    h.launch_queue = 1 << 20;
    return h;
  }
  BytesPerSecond capacity(Link) const override { return BytesPerSecond(job_.bandwidth); }
  DeviceMemory memory() const override {
    return {Bytes(std::int64_t{1} << 40), Bytes(0), Bytes(0)};
  }
  std::int64_t node_of(std::int64_t rank) const override { return rank / 8; }

 private:
  FluidJob job_;
  std::int64_t ranks_;
};

/// Writes the job: stream 0 computes, stream 1 communicates. A gather waits for the compute that
/// frees its slot.
class FluidWriter {
 public:
  explicit FluidWriter(const FluidJob& job) : job_(job) {
    p_.streams = {{"compute", 0}, {"communication", 0}};
    p_.names.push_back("");
  }
  Schedule write(std::int64_t ranks) {
    for (int i = 0; i < job_.blocks; ++i) {
      gather();
      compute(1);
    }
    for (int i = 0; i < job_.blocks; ++i) {
      gather();
      // As on the other side, the reduction before is issued after this gather.
      if (i > 0) collective(CollectiveKind::kReduceScatter, computed_[computed_.size() - 1]);
      compute(2);
    }
    collective(CollectiveKind::kReduceScatter, computed_.back());
    p_.steps.push_back({0, static_cast<std::uint32_t>(p_.instructions.size())});
    Schedule s;
    s.world = ranks;
    s.groups.push_back({"shard", ranks, 1});
    s.programs.push_back(std::move(p_));
    s.program_of_rank = {0};
    return s;
  }

 private:
  void add(InstructionKind kind, std::uint32_t id, StreamIndex stream = 0) {
    p_.instructions.push_back({kind, stream, 0, id});
  }
  std::uint32_t record(StreamIndex stream) {
    add(InstructionKind::kRecordEvent, p_.events, stream);
    return p_.events++;
  }
  void gather() {
    const std::size_t n = gathered_.size(), slots = static_cast<std::size_t>(job_.prefetch);
    collective(CollectiveKind::kAllGather, n >= slots ? computed_[n - slots] : UINT32_MAX);
    gathered_.push_back(record(1));
  }
  void collective(CollectiveKind kind, std::uint32_t after) {
    if (after != UINT32_MAX) add(InstructionKind::kWaitEvent, after, 1);
    Collective c;
    c.kind = kind;
    c.stream = 1;
    c.group = GroupId(0);
    c.bytes = Bytes(job_.block_bytes);
    p_.collectives.push_back(c);
    add(InstructionKind::kCollective, static_cast<std::uint32_t>(p_.collectives.size() - 1));
  }
  void compute(int times) {
    add(InstructionKind::kWaitEvent, gathered_[computed_.size()], 0);
    Launch l;
    l.op = OpKind::kMatmul;
    l.flops = Flops(static_cast<std::int64_t>(job_.forward_flop) * times);
    p_.launches.push_back(l);
    add(InstructionKind::kLaunch, static_cast<std::uint32_t>(p_.launches.size() - 1));
    computed_.push_back(record(0));
  }

  FluidJob job_;
  RankProgram p_;
  std::vector<std::uint32_t> gathered_, computed_;
};

}  // namespace foreshard::bench
