// Launches of equal cost have one shape, whatever repeats around them.

#include "sim/shapes.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace foreshard::sim {
namespace {

/// Launches that differ from the first in one thing each, all of which costs depend on.
std::vector<Launch> kinds_of_launches() {
  Launch base;
  base.dims = {64, 64, 8, 0, 0, 0};
  base.flops = Flops(1000);
  base.read = base.written = Bytes(4096);
  std::vector<Launch> kinds(8, base);
  kinds[1].op = OpKind::kFlashAttention;
  kinds[2].dtype = DType::kBFloat16;
  kinds[3].phase = Phase::kOptimizer;
  kinds[4].kernels = 2;
  kinds[5].dims[2] = 9;
  kinds[6].written = Bytes(8192);
  kinds[7].stream = 1;  // of the CPU
  return kinds;
}

TEST(Shapes, EqualLaunchesHaveOneAndOthersNone) {
  const std::vector<Launch> kinds = kinds_of_launches();
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    RankProgram program;
    program.streams.resize(3);
    program.streams[1].on_host = true;
    std::vector<std::size_t> kind_of;  // by launch
    // Blocks that repeat, in which a kind comes more than once, with other launches between them.
    std::vector<std::size_t> block(1 + random() % 12);
    for (std::size_t& k : block) k = random() % kinds.size();
    while (kind_of.size() < 200) {
      kind_of.insert(kind_of.end(), block.begin(), block.end());
      if (random() % 3 == 0) kind_of.push_back(random() % kinds.size());
    }
    for (const std::size_t k : kind_of) {
      program.launches.push_back(kinds[k]);
      if (k != 7 && random() % 2 == 0) program.launches.back().stream = 2;  // costs the same there
    }
    const ProgramShapes shapes = find_shapes(program);
    ASSERT_EQ(shapes.launch_shape.size(), kind_of.size());
    std::map<std::size_t, std::uint32_t> shape_of, count, first;  // by kind
    for (std::uint32_t i = 0; i < kind_of.size(); ++i) {
      shape_of.try_emplace(kind_of[i], shapes.launch_shape[i]);
      first.try_emplace(kind_of[i], i);
      ++count[kind_of[i]];
      EXPECT_EQ(shapes.launch_shape[i], shape_of[kind_of[i]]) << "launch " << i;
    }
    ASSERT_EQ(shapes.launches.size(), shape_of.size());
    for (const auto& [kind, shape] : shape_of) {
      EXPECT_EQ(shapes.launches[shape], first[kind]);
      EXPECT_EQ(shapes.launch_count[shape], count[kind]);
    }
  }
}

}  // namespace
}  // namespace foreshard::sim
