#pragma once

// The synthetic sharded training step of the speed benchmarks: 32 blocks, gathers two ahead,
// reductions behind, activations kept from forward to backward.

#include <cstdint>
#include <vector>

#include "schedules/schedule.h"

namespace foreshard::bench {

/// Writes the program of one rank. Sizes of an 8-billion-parameter decoder at 4096 tokens.
class StepWriter {
 public:
  StepWriter(int blocks, int kernels) : blocks_(blocks), kernels_(kernels) {
    for (const char* name : {"compute", "all_gather", "reduce_scatter", "copy_in"})
      p_.streams.push_back({name, 0});
    p_.names.push_back("");
  }

  RankProgram write(int steps) {
    for (int b = 0; b < blocks_; ++b)
      add(InstructionKind::kAlloc, buffer(kParameters / kWorld * 4, 0));
    p_.init = {0, size()};
    for (int s = 0; s < steps; ++s) step();
    return std::move(p_);
  }

 private:
  static constexpr std::int64_t kWorld = 32, kParameters = 218'112'000, kHidden = 4096,
                                kTokens = 4096, kInner = 14336;

  std::uint32_t size() const { return static_cast<std::uint32_t>(p_.instructions.size()); }
  void add(InstructionKind kind, std::uint32_t id, StreamIndex stream = 0) {
    p_.instructions.push_back({kind, stream, 0, id});
  }
  std::uint32_t buffer(std::int64_t bytes, StreamIndex pool) {
    Buffer b;
    b.bytes = Bytes(bytes);
    b.pool = pool;
    p_.buffers.push_back(b);
    return static_cast<std::uint32_t>(p_.buffers.size() - 1);
  }
  std::uint32_t alloc(std::int64_t bytes, StreamIndex pool = 0) {
    const std::uint32_t b = buffer(bytes, pool);
    add(InstructionKind::kAlloc, b);
    return b;
  }
  void free(std::uint32_t b) { add(InstructionKind::kFree, b); }

  void launch(int k, Phase phase, StreamIndex stream = 0) {
    Launch l;
    l.dtype = DType::kBFloat16;
    l.phase = phase;
    l.stream = stream;
    if (k % 4 == 0) {
      l.op = OpKind::kMatmul;
      l.dims = {kTokens, k % 8 == 0 ? kHidden : kInner, kHidden, 1};
      l.flops = Flops(2 * l.dims[0] * l.dims[1] * l.dims[2]);
    } else {
      l.op = k % 2 ? OpKind::kMul : OpKind::kAdd;
    }
    l.read = l.written = Bytes(kTokens * kHidden * 2 * (1 + k % 3));
    p_.launches.push_back(l);
    add(InstructionKind::kLaunch, static_cast<std::uint32_t>(p_.launches.size() - 1));
  }
  void collective(CollectiveKind kind, StreamIndex stream) {
    Collective c;
    c.kind = kind;
    c.dtype = DType::kBFloat16;
    c.stream = stream;
    c.group = GroupId(0);
    c.bytes = Bytes(kParameters * 2);
    p_.collectives.push_back(c);
    add(InstructionKind::kCollective, static_cast<std::uint32_t>(p_.collectives.size() - 1));
  }
  std::uint32_t record(StreamIndex stream) {
    add(InstructionKind::kRecordEvent, p_.events, stream);
    return p_.events++;
  }
  void host(std::int64_t ns) {
    p_.host_work.push_back({ns, 0});
    add(InstructionKind::kHost, static_cast<std::uint32_t>(p_.host_work.size() - 1));
  }

  std::uint32_t unshard(std::uint32_t& gathered) {
    host(20'000);
    gathered = alloc(kParameters * 2, 1);
    add(InstructionKind::kWaitEvent, record(0), 3);
    launch(1, Phase::kForward, 3);
    add(InstructionKind::kWaitEvent, record(3), 1);
    collective(CollectiveKind::kAllGather, 1);
    return record(1);
  }

  void step() {
    const std::uint32_t begin = size();
    std::vector<std::vector<std::uint32_t>> saved(static_cast<std::size_t>(blocks_));
    std::uint32_t gathered = 0, next_gathered = 0;
    std::uint32_t ready = unshard(gathered), next_ready = 0;
    for (int b = 0; b < blocks_; ++b) {
      host(40'000);
      add(InstructionKind::kWaitEvent, ready, 0);
      if (b + 1 < blocks_) next_ready = unshard(next_gathered);
      for (int k = 0; k < kernels_; ++k) {
        const std::uint32_t out = alloc(kTokens * kHidden * 2 * (1 + k % 3));
        launch(k, Phase::kForward);
        if (k % 2) {
          saved[static_cast<std::size_t>(b)].push_back(out);
        } else {
          free(out);
        }
      }
      free(gathered);
      gathered = next_gathered;
      ready = next_ready;
    }
    backward(saved);
    for (int k = 0; k < 12; ++k) launch(3, Phase::kOptimizer);
    p_.steps.push_back({begin, size()});
  }

  void backward(std::vector<std::vector<std::uint32_t>>& saved) {
    std::uint32_t gathered = 0, next_gathered = 0;
    std::uint32_t ready = unshard(gathered), next_ready = 0;
    std::uint32_t reduced = 0;
    bool reducing = false;
    for (int b = blocks_ - 1; b >= 0; --b) {
      host(60'000);
      add(InstructionKind::kWaitEvent, ready, 0);
      if (b > 0) next_ready = unshard(next_gathered);
      const std::uint32_t gradient = alloc(kParameters * 2);
      for (int k = 0; k < kernels_ * 2; ++k) {
        const std::uint32_t temporary = alloc(kTokens * kHidden * 2 * (1 + k % 3));
        launch(k, Phase::kBackward);
        free(temporary);
        if (k % 4 == 3) {
          free(saved[static_cast<std::size_t>(b)].back());
          saved[static_cast<std::size_t>(b)].pop_back();
        }
      }
      free(gathered);
      if (reducing) {
        add(InstructionKind::kWaitEvent, record(2), 0);
        free(reduced);
      }
      reduced = alloc(kParameters * 4, 0);
      launch(1, Phase::kBackward);
      free(gradient);
      add(InstructionKind::kWaitEvent, record(0), 2);
      collective(CollectiveKind::kReduceScatter, 2);
      reducing = true;
      gathered = next_gathered;
      ready = next_ready;
    }
    add(InstructionKind::kWaitEvent, record(2), 0);
    free(reduced);
  }

  RankProgram p_;
  int blocks_, kernels_;
};

inline Schedule make_schedule(int steps, std::int64_t world = 32) {
  Schedule s;
  s.world = world;
  s.groups.push_back({"shard", world, 1});
  s.programs.push_back(StepWriter(32, 28).write(steps));
  s.program_of_rank = {0};
  return s;
}

}  // namespace foreshard::bench
