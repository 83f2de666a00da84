// Cost of asking the collective model, and of building it for one group.

#include <benchmark/benchmark.h>

#include "sim/cost/collective.h"

namespace foreshard {
namespace {

/// One question; sizes and kinds change so that every branch is taken.
void ask(benchmark::State& state) {
  const int nodes = static_cast<int>(state.range(0));
  const CollectiveModel model(load_hardware("dgx-h100"), place_block(8 * nodes, nodes));
  std::int64_t i = 0;
  for (auto _ : state) {
    ++i;
    benchmark::DoNotOptimize(model.cost(static_cast<CollectiveKind>(i % 3), Bytes(1000 + i * 37)));
  }
}
BENCHMARK(ask)->Name("collective_cost")->Arg(1)->Arg(8);

void build(benchmark::State& state) {
  const auto machine = load_hardware("dgx-h100");
  const auto placement = place_block(64, 8);
  for (auto _ : state) benchmark::DoNotOptimize(CollectiveModel(machine, placement));
}
BENCHMARK(build)->Name("collective_model_for_a_group");

}  // namespace
}  // namespace foreshard
