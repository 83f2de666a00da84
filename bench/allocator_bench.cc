// Cost of one call of the caching allocator. Needs benchmark, benchmark_main and fs_memory.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "memory/caching_allocator.h"
#include "memory/virtual_segment_source.h"

namespace foreshard {
namespace {

/// One allocator call of a program: bytes > 0 allocates slot `slot` on `stream`, bytes == 0 frees
/// it.
struct Call {
  std::uint32_t slot;
  std::uint32_t stream;
  std::int64_t bytes;
};

/// Host order of one sharded training step of a plain transformer (hidden 4096, 4096 tokens, bf16):
/// per block an all-gather buffer on stream 1, unsharded parameters, temporaries and kept
/// activations on stream 0, and a reduce-scatter output on stream 2 that lives to the end of the
/// step.
class StepProgram {
 public:
  explicit StepProgram(int blocks) {
    for (int k = 0; k < blocks; ++k) forward(k);
    for (int k = blocks - 1; k >= 0; --k) backward(k);
    for (const std::uint32_t slot : gradients_) free(slot);
  }

  const std::vector<Call>& calls() const { return calls_; }
  std::uint32_t slots() const { return slots_; }

 private:
  static constexpr std::int64_t kHidden = 4096 * 4096 * 2;
  static constexpr std::int64_t kWide = 4096 * std::int64_t{14336} * 2;

  std::uint32_t allocate(std::int64_t bytes, std::uint32_t stream = 0) {
    calls_.push_back({slots_, stream, bytes});
    return slots_++;
  }
  void free(std::uint32_t slot) { calls_.push_back({slot, 0, 0}); }
  void temporary(std::int64_t bytes) { free(allocate(bytes)); }

  std::vector<std::uint32_t> unshard() {
    const std::uint32_t gathered = allocate(436'000'000, 1);
    std::vector<std::uint32_t> parameters;
    for (const std::int64_t bytes : {kHidden, kHidden / 4, kHidden / 4, kHidden, kWide, kWide,
                                     kWide, std::int64_t{8192}, std::int64_t{8192}}) {
      parameters.push_back(allocate(bytes));
    }
    free(gathered);
    return parameters;
  }

  void forward(int k) {
    const auto parameters = unshard();
    kept_.resize(static_cast<std::size_t>(k) + 1);
    for (const std::int64_t bytes :
         {kHidden, std::int64_t{16384}, kHidden, kHidden / 4, kHidden / 4, kHidden,
          std::int64_t{524288}, kHidden, kWide, kWide, kWide, kHidden}) {
      temporary(32 << 20);
      kept_.back().push_back(allocate(bytes));
      temporary(bytes);
    }
    for (const std::uint32_t p : parameters) free(p);
  }

  void backward(int k) {
    const auto parameters = unshard();
    std::vector<std::uint32_t> gradients;
    auto& kept = kept_[static_cast<std::size_t>(k)];
    for (; !kept.empty(); kept.pop_back()) {
      temporary(32 << 20);
      const std::uint32_t grad = allocate(kHidden);
      if (gradients.size() < parameters.size()) gradients.push_back(allocate(kHidden / 2));
      free(kept.back());
      free(grad);
    }
    for (const std::uint32_t p : parameters) free(p);
    const std::uint32_t input = allocate(872'000'000);
    for (const std::uint32_t g : gradients) free(g);
    gradients_.push_back(allocate(109'000'000, 2));
    free(input);
  }

  std::vector<Call> calls_;
  std::vector<std::vector<std::uint32_t>> kept_;
  std::vector<std::uint32_t> gradients_;
  std::uint32_t slots_ = 0;
};

void run(CachingAllocator& allocator, const StepProgram& program,
         std::vector<BlockHandle>& blocks) {
  for (const Call& call : program.calls()) {
    if (call.bytes > 0) {
      blocks[call.slot] = allocator.allocate(Bytes(call.bytes), call.stream).block;
    } else {
      allocator.free(blocks[call.slot]);
    }
  }
}

void training_steps(benchmark::State& state, const AllocatorOptions& options) {
  const StepProgram program(static_cast<int>(state.range(0)));
  std::vector<BlockHandle> blocks(program.slots());
  VirtualSegmentSource source(VirtualSegmentSource::kUnlimited);
  InstantProgress progress;
  CachingAllocator allocator(options, source, progress);
  run(allocator, program, blocks);
  for (auto _ : state) run(allocator, program, blocks);
  const auto calls = static_cast<std::int64_t>(program.calls().size()) *
                     static_cast<std::int64_t>(state.iterations());
  state.SetItemsProcessed(calls);
  state.counters["per_call"] = benchmark::Counter(
      static_cast<double>(calls), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void BM_AllocatorStep(benchmark::State& state) { training_steps(state, AllocatorOptions{}); }
BENCHMARK(BM_AllocatorStep)->Arg(32)->Arg(126);

void BM_AllocatorStepExpandable(benchmark::State& state) {
  AllocatorOptions options;
  options.expandable_segments = true;
  training_steps(state, options);
}
BENCHMARK(BM_AllocatorStepExpandable)->Arg(32);

/// Deferred frees: every block is also used by another stream.
void BM_AllocatorRecordStream(benchmark::State& state) {
  VirtualSegmentSource source(VirtualSegmentSource::kUnlimited);
  InstantProgress progress;
  CachingAllocator allocator(AllocatorOptions{}, source, progress);
  for (auto _ : state) {
    const Allocation a = allocator.allocate(Bytes(30 << 20), 0);
    allocator.record_stream(a.block, 1);
    allocator.free(a.block);
  }
}
BENCHMARK(BM_AllocatorRecordStream);

}  // namespace
}  // namespace foreshard
