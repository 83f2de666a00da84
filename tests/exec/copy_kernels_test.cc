// Copies: lists for sharding, rows by index against plain double-precision references; gradients
// against central differences of those references.

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/exec/host_tensor.h"

namespace foreshard::fixture {
namespace {

TEST(Kernels, ListsForSharding) {
  // Two parameters [5, 2] and [3] over 2 ranks: rows padded to 6 and 4, so each rank's part is 3 *
  // 2 + 2 = 8 elements.
  HostTensor g1({5, 2}, DType::kBFloat16), g2({3}, DType::kBFloat16), packed({2, 9});
  g1.set({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  g2.set({11, 12, 13});
  Call{OpKind::kChunkCat, {g1, g2}, {packed}, {0}}.run();
  EXPECT_EQ(packed.values(), (Values{1, 2, 3, 4, 5, 6, 11, 12, 0, 7, 8, 9, 10, 0, 0, 13, 0, 0}));
  // ... and the way back into padded parameters.
  HostTensor p1({2, 6}), p2({2, 2});
  Call{OpKind::kSplitCopy, {packed}, {p1, p2}, {}}.run();
  EXPECT_EQ(p1.values(), (Values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0}));
  EXPECT_EQ(p2.values(), (Values{11, 12, 13, 0}));
}

TEST(Kernels, ChunkCatAlongTheLastDimension) {
  HostTensor g({2, 4}), packed({2, 4});
  g.set({1, 2, 3, 4, 5, 6, 7, 8});
  Call{OpKind::kChunkCat, {g}, {packed}, {1}}.run();
  EXPECT_EQ(packed.values(), (Values{1, 2, 5, 6, 3, 4, 7, 8}));
}

TEST(Kernels, FlattenUnflattenCat) {
  HostTensor a({2, 2}, DType::kFloat32, {1, 0}), b({1}), flat({7}), joined({2, 3}), c({2, 1});
  a.set({1, 2, 3, 4});
  b.set({5});
  c.set({8, 9});
  Call{OpKind::kFlatten, {a, b}, {flat}, {}}.run();
  EXPECT_EQ(flat.values(), (Values{1, 2, 3, 4, 5, 0, 0}));
  HostTensor a2({2, 2}), b2({1}, DType::kBFloat16);
  Call{OpKind::kUnflatten, {flat}, {a2, b2}, {}}.run();
  EXPECT_EQ(a2.values(), a.values());
  EXPECT_EQ(b2.values(), b.values());
  Call{OpKind::kCat, {a, c}, {joined}, {-1}}.run();
  EXPECT_EQ(joined.values(), (Values{1, 2, 8, 3, 4, 9}));
}

TEST(Kernels, EmbeddingAndItsGradient) {
  HostTensor weight({4, 3}), index({2, 3}, DType::kInt64), y({2, 3, 3}), grad({2, 3, 3}),
      gw({4, 3});
  weight.wave(0.2);
  index.set({1, 3, 1, 0, 1, 1});
  grad.wave(0.9);
  Call{OpKind::kEmbedding, {weight, index}, {y}, {}}.run();
  const Values w = weight.values(), g = grad.values(), out = y.values();
  const std::size_t rows[] = {1, 3, 1, 0, 1, 1};
  Values expected(12, 0);
  for (std::size_t i = 0; i < 6; ++i) {
    for (std::size_t k = 0; k < 3; ++k) {
      EXPECT_EQ(out[i * 3 + k], w[rows[i] * 3 + k]);
      expected[rows[i] * 3 + k] += g[i * 3 + k];
    }
  }
  Call{OpKind::kEmbeddingBackward, {grad, index}, {gw}, {}}.run();
  expect_near(gw.values(), expected, 1e-6);
  index.set({1, 4, 1, 0, 1, 1});
  EXPECT_THROW((Call{OpKind::kEmbedding, {weight, index}, {y}, {}}.run()), RunError);
}

TEST(Kernels, IndexedCopies) {
  HostTensor x({3, 2}), index({2, 2}, DType::kInt64), y({2, 2}), z({3, 2}),
      rows({2}, DType::kInt64), picked({2, 2}), counts({3}, DType::kInt64);
  x.set({1, 2, 3, 4, 5, 6});
  index.set({2, 0, 1, 2});
  Call{OpKind::kGather, {x, index}, {y}, {0}}.run();
  EXPECT_EQ(y.values(), (Values{5, 2, 3, 6}));
  Call{OpKind::kScatter, {index, y}, {z}, {0, 1}}.run();
  EXPECT_EQ(z.values(), (Values{0, 2, 3, 0, 5, 6}));
  rows.set({2, 2});
  Call{OpKind::kIndexSelect, {x, rows}, {picked}, {0}}.run();
  EXPECT_EQ(picked.values(), (Values{5, 6, 5, 6}));
  Call{OpKind::kIndexAdd, {x, rows, picked}, {x}, {0}}.run();
  EXPECT_EQ(x.values(), (Values{1, 2, 3, 4, 15, 18}));
  Call{OpKind::kHistogram, {index}, {counts}, {}}.run();
  EXPECT_EQ(counts.values(), (Values{1, 1, 2}));
}

TEST(Kernels, OrderedSelections) {
  HostTensor x({2, 4}), values({2, 2}), indices({2, 2}, DType::kInt64), sums({2, 4});
  x.set({3, 1, 3, 2, -1, 5, 0, 4});
  Call{OpKind::kTopK, {x}, {values, indices}, {}}.run();
  EXPECT_EQ(values.values(), (Values{3, 3, 5, 4}));
  EXPECT_EQ(indices.values(), (Values{0, 2, 1, 3}));
  HostTensor sorted({2, 4}), order({2, 4}, DType::kInt64);
  Call{OpKind::kSort, {x}, {sorted, order}, {}}.run();
  EXPECT_EQ(sorted.values(), (Values{1, 2, 3, 3, -1, 0, 4, 5}));
  EXPECT_EQ(order.values(), (Values{1, 3, 0, 2, 0, 2, 3, 1}));
  Call{OpKind::kCumsum, {x}, {sums}, {}}.run();
  EXPECT_EQ(sums.values(), (Values{3, 4, 7, 9, -1, 4, 4, 8}));
}

}  // namespace
}  // namespace foreshard::fixture
