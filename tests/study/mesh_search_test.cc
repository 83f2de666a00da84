#include "study/mesh_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace foreshard {
namespace {

/// A speed with one maximum at `peak` copies, as a hill over the logarithm.
MeshSpeed hill(double peak) {
  return [peak](Mesh m) {
    const double d = std::log2(static_cast<double>(m.replicate)) - std::log2(peak);
    return std::optional<double>(100 - d * d);
  };
}

TEST(MeshSearch, FindsTheTopOfEveryHill) {
  for (std::int64_t peak = 2; peak <= 64; peak *= 2) {
    const auto best = best_mesh(512, 8, *hill(static_cast<double>(peak))({512, 1}),
                                hill(static_cast<double>(peak)));
    ASSERT_TRUE(best.has_value()) << peak;
    EXPECT_EQ(best->replicate, peak);
    EXPECT_EQ(best->shard * best->replicate, 512);
  }
  EXPECT_FALSE(best_mesh(512, 8, 200, hill(4)).has_value()) << "nothing is faster than one copy";
}

// On a slow network two copies lose, and one node as the shard group wins all the same.
TEST(MeshSearch, TriesOneNodeBeyondAValley) {
  const auto speed = [](Mesh m) -> std::optional<double> { return m.shard == 8 ? 20 : 5; };
  const auto best = best_mesh(64, 8, 10, speed);
  ASSERT_TRUE(best.has_value());
  EXPECT_EQ(best->shard, 8);
}

TEST(MeshSearch, AsksOnlyForWholeNodesAndTakesNothingThatDoesNotFit) {
  std::set<std::int64_t> asked;
  const auto none = [&](Mesh m) -> std::optional<double> {
    asked.insert(m.shard);
    return std::nullopt;
  };
  EXPECT_FALSE(best_mesh(72, 8, 1, none).has_value());  // 9 nodes have no half.
  EXPECT_EQ(asked, (std::set<std::int64_t>{8}));
  EXPECT_FALSE(best_mesh(8, 8, 1, hill(2)).has_value());
  EXPECT_FALSE(best_mesh(12, 8, 1, hill(2)).has_value());
}

}  // namespace
}  // namespace foreshard
