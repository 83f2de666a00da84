#include "core/format.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace foreshard {
namespace {

// By hand: 2^40 is a TiB, 10^12 a TB; three digits; the next unit from where the digits would reach
// it (0.9995).
TEST(Format, MemoryIsBinaryAndTrafficDecimal) {
  EXPECT_EQ(format_memory(Bytes(0)), "0 B");
  EXPECT_EQ(format_memory(Bytes(512)), "512 B");
  EXPECT_EQ(format_memory(Bytes(1023)), "1023 B");
  EXPECT_EQ(format_memory(Bytes(1024)), "1.00 KiB");
  EXPECT_EQ(format_memory(Bytes(std::int64_t{80} << 30)), "80.0 GiB");
  EXPECT_EQ(format_memory(Bytes((std::int64_t{1} << 30) - 1)), "1.00 GiB");
  EXPECT_EQ(format_bytes_decimal(Bytes(1'500'000'000)), "1.50 GB");
  EXPECT_EQ(format_memory(Bytes(-2048)), "-2.00 KiB");
}

TEST(Format, TimesAndRates) {
  EXPECT_EQ(format_time(picoseconds(7)), "7.00 ps");
  EXPECT_EQ(format_time(microseconds(180)), "180 us");
  EXPECT_EQ(format_time(milliseconds(1930)), "1.93 s");
  EXPECT_EQ(format_signed_time(Time(0)), "0");
  EXPECT_EQ(format_signed_time(microseconds(-180)), "-180 us");
  EXPECT_EQ(format_signed_time(milliseconds(20)), "+20.0 ms");
  EXPECT_EQ(format_rate(BytesPerSecond(450e9)), "450 GB/s");
}

TEST(Format, Counts) {
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(70.55e9), "70.55 B");
  EXPECT_EQ(with_thousands(61865984), "61,865,984");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(-1000), "-1,000");
  EXPECT_EQ(retries_text(3, 9), "3 allocator retries a step");
  EXPECT_EQ(retries_text(0, 1), "1 allocator retry in earlier steps");
}

// The ends of the range have no positive counterpart.
TEST(Format, TheSmallestNumber) {
  EXPECT_EQ(with_thousands(INT64_MIN), "-9,223,372,036,854,775,808");
  EXPECT_EQ(format_signed_time(Time(INT64_MIN))[0], '-');
}

TEST(NearestName, IsASlipOfThePen) {
  const std::vector<std::string> names = {"fsdp1", "fsdp2", "zero3", "sharded-optimizer"};
  EXPECT_EQ(nearest_name("fsdp", names), "fsdp1");  // the first of equally near ones
  EXPECT_EQ(nearest_name("zro3", names), "zero3");
  EXPECT_EQ(nearest_name("sharded_optimiser", names), "sharded-optimizer");
  EXPECT_EQ(nearest_name("horovod", names), "");
  EXPECT_EQ(nearest_name("fsdp2", {}), "");
  EXPECT_EQ(nearest_name(std::string(1000, 'f'), names), "");
}

}  // namespace
}  // namespace foreshard
