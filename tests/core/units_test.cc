#include "core/units.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace foreshard {
namespace {

constexpr Time kLongest(INT64_MAX);

TEST(Units, SecondsAreRoundedToPicoseconds) {
  EXPECT_EQ(from_seconds(1.5), milliseconds(1500));
  EXPECT_EQ(from_seconds(0.6e-12).value, 1);
  EXPECT_EQ(from_seconds(-0.6e-12).value, -1);
  EXPECT_EQ(from_seconds(0.4e-12).value, 0);
  EXPECT_DOUBLE_EQ(to_seconds(milliseconds(1500)), 1.5);
}

// 106 days are the range; what is longer, or no number, is the longest time and can be negated.
TEST(Units, TimesSaturate) {
  EXPECT_EQ(from_seconds(1e30), kLongest);
  EXPECT_EQ(from_seconds(-1e30).value, -INT64_MAX);
  EXPECT_EQ(from_seconds(std::numeric_limits<double>::infinity()), kLongest);
  EXPECT_EQ(from_seconds(std::nan("")), kLongest);
  EXPECT_EQ(from_seconds(9.22e6).value / kPicosecondsPerSecond, 9'220'000);
}

TEST(Units, QuantityOverRate) {
  EXPECT_EQ(Bytes(3'350'000'000'000) / BytesPerSecond(3.35e12), seconds(1));
  EXPECT_EQ(Bytes(1) / BytesPerSecond(0), kLongest);  // a rate that nobody gave
  EXPECT_EQ(Bytes(0) / BytesPerSecond(0), kLongest);
  EXPECT_EQ(Bytes(1'000'000'000) / BytesPerSecond(1e-9), kLongest);
  EXPECT_EQ(Flops(1 << 20) / FlopsPerSecond(1 << 20), seconds(1));
  EXPECT_EQ(Bytes(1) / BytesPerSecond(3e12), picoseconds(1));  // a third of one, rounded up
}

TEST(Units, RatiosAndWholeDivision) {
  EXPECT_DOUBLE_EQ(Bytes(1) / Bytes(4), 0.25);
  EXPECT_EQ(Bytes(7) / 2, Bytes(3));
  EXPECT_EQ(2 * Bytes(3) + Bytes(1) - Bytes(7), Bytes(0));
}

}  // namespace
}  // namespace foreshard
