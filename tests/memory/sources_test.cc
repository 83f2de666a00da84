#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "core/error.h"
#include "memory/address_space.h"
#include "memory/caching_allocator.h"
#include "memory/host_segment_source.h"
#include "memory/virtual_segment_source.h"

namespace foreshard {
namespace {

constexpr std::int64_t kMebibyte = 1 << 20;

using namespace literals;

std::string issues_of(std::string_view conf) {
  try {
    parse_alloc_conf(conf);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

TEST(AllocConf, Reads) {
  EXPECT_EQ(parse_alloc_conf(""), AllocatorOptions{});
  const AllocatorOptions o = parse_alloc_conf(
      "max_split_size_mb:512, garbage_collection_threshold:0.8,expandable_segments:True,"
      "max_non_split_rounding_mb:30,per_process_memory_fraction:0.9,backend:native,pinned_use_"
      "background_threads:True");
  EXPECT_EQ(o.max_split_size, 512_MiB);
  EXPECT_EQ(o.garbage_collection_threshold, 0.8);
  EXPECT_TRUE(o.expandable_segments);
  EXPECT_EQ(o.max_non_split_rounding, 30_MiB);
  EXPECT_EQ(o.memory_fraction, 0.9);
}

// The example of PyTorch's CUDA notes: [256:1,512:2,1024:4,>:8].
TEST(AllocConf, ReadsDivisionsBySize) {
  const AllocatorOptions o = parse_alloc_conf("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]");
  for (std::size_t k = 0; k <= 8; ++k) EXPECT_EQ(o.roundup_power2_divisions[k], 1u) << k;
  EXPECT_EQ(o.roundup_power2_divisions[9], 2u);
  EXPECT_EQ(o.roundup_power2_divisions[10], 4u);
  for (std::size_t k = 11; k < 16; ++k) EXPECT_EQ(o.roundup_power2_divisions[k], 8u) << k;
  EXPECT_EQ(parse_alloc_conf("roundup_power2_divisions:4").roundup_power2_divisions[15], 4u);
}

/// Requests in tenths of a MiB and what PyTorch 2.15 takes for them on a stand-in H100; ">" alone
/// leaves out sizes below 2 MiB.
TEST(AllocConf, RoundsAboveTheLastNamedSize) {
  const auto kib = [](const char* conf, std::int64_t tenths) {
    return round_request(Bytes((tenths << 20) / 10), parse_alloc_conf(conf)).value >> 10;
  };
  const char* notes = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]";
  EXPECT_EQ(kib(notes, 5207), 768 << 10);
  EXPECT_EQ(kib(notes, 10307), 1280 << 10);
  EXPECT_EQ(kib(notes, 14001), 1536 << 10);
  EXPECT_EQ(kib(notes, 20507), 2304 << 10);
  EXPECT_EQ(kib("roundup_power2_divisions:[512:2,>:8]", 10307), 1152 << 10);
  EXPECT_EQ(kib("roundup_power2_divisions:[>:4]", 13), 1331);
  EXPECT_EQ(kib("roundup_power2_divisions:[>:4]", 33), 3584);
  EXPECT_EQ(kib("roundup_power2_divisions:[>:4]", 403), 48 << 10);
}

TEST(AllocConf, ReportsEveryProblem) {
  const std::string text = issues_of(
      "max_split_size:512,garbage_collection_threshold:1.5,expandable_segments:yes,max_split_size_"
      "mb:12,nonsense");
  EXPECT_NE(text.find("did you mean max_split_size_mb?"), std::string::npos) << text;
  EXPECT_NE(text.find("garbage_collection_threshold: found 1.5"), std::string::npos) << text;
  EXPECT_NE(text.find("expandable_segments: found \"yes\" (True or False)"), std::string::npos)
      << text;
  EXPECT_NE(text.find("max_split_size_mb: found 12 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("nonsense: not of the form key:value"), std::string::npos) << text;
}

TEST(AllocConf, RefusesWhatItCannotModel) {
  for (const char* bad :
       {"backend:cudaMallocAsync", "max_split_size_mb:", "max_split_size_mb:-5",
        "max_split_size_mb:1e3", "max_split_size_mb:99999999999999999999",
        "large_segment_size_mb:4", "roundup_power2_divisions:3", "roundup_power2_divisions:[256:1",
        "roundup_power2_divisions:[]", "roundup_power2_divisions:[100:2]",
        "roundup_power2_divisions:[256]", "garbage_collection_threshold:nan",
        "per_process_memory_fraction:2", ",", "expandable_segments", ":True"}) {
    EXPECT_NE(issues_of(bad), "") << bad;
  }
}

TEST(Addresses, GrowThenFillGaps) {
  AddressSpace space(100 * kMebibyte);
  EXPECT_EQ(space.place(40 * kMebibyte), 0);
  EXPECT_EQ(space.place(40 * kMebibyte), 42 * kMebibyte);
  EXPECT_TRUE(space.remove(0, 40 * kMebibyte));
  EXPECT_FALSE(space.remove(0, 40 * kMebibyte));
  EXPECT_EQ(space.place(10 * kMebibyte), 84 * kMebibyte);  // above all, though there is a gap
  EXPECT_EQ(space.place(30 * kMebibyte), 0);               // the top is reached
  EXPECT_EQ(space.place(20 * kMebibyte), -1);
  EXPECT_EQ(space.place(8 * kMebibyte), 32 * kMebibyte);
  EXPECT_TRUE(space.contains(50 * kMebibyte, 32 * kMebibyte));
  EXPECT_FALSE(space.contains(50 * kMebibyte, 33 * kMebibyte));
}

// Ranges that were given back are forgotten late; nobody can tell.
TEST(Addresses, ManyRemovalsLeaveTheOthersInPlace) {
  AddressSpace space(100'000 * kMebibyte);
  std::vector<std::int64_t> at;
  for (int k = 0; k < 200; ++k) at.push_back(space.place(2 * kMebibyte));
  for (std::size_t k = 0; k < at.size(); k += 3) EXPECT_TRUE(space.remove(at[k], 2 * kMebibyte));
  for (std::size_t k = 0; k < at.size(); ++k) {
    EXPECT_EQ(space.contains(at[k], 2 * kMebibyte), k % 3 != 0) << k;
    EXPECT_EQ(space.remove(at[k], 2 * kMebibyte), k % 3 != 0) << k;
  }
  EXPECT_FALSE(space.contains(at[1], 1));
}

TEST(VirtualSource, RefusesBeyondCapacityAndForeignReleases) {
  VirtualSegmentSource source(10_MiB, 3_MiB);
  EXPECT_EQ(source.allocate(8_MiB, 0), 0u);
  const DeviceAddress a = source.allocate(6_MiB, 0);
  EXPECT_NE(a, 0u);
  EXPECT_EQ(source.in_use(), 9_MiB);
  EXPECT_THROW(source.release(a + 512, 6_MiB), InternalError);
  EXPECT_THROW(source.map(a + 512, 6_MiB), InternalError);
  source.release(a, 6_MiB);
  EXPECT_EQ(source.in_use(), 3_MiB);
}

TEST(HostSource, GivesRealMemoryInTheSameOrder) {
  for (const bool expandable : {false, true}) {
    AllocatorOptions o;
    o.expandable_segments = expandable;
    HostSegmentSource host(100_MiB);
    VirtualSegmentSource device(100_MiB);
    InstantProgress progress;
    CachingAllocator real(o, host, progress);
    CachingAllocator imagined(o, device, progress);
    std::vector<std::pair<Allocation, Allocation>> live;
    DeviceAddress origin_real = 0, origin_imagined = 0;
    for (int k = 0; k < 2000; ++k) {
      const Bytes size = Bytes(1 + (k * 7919) % (k % 3 == 0 ? 9'000'000 : 300'000));
      const Allocation a = real.allocate(size, static_cast<std::uint32_t>(k % 2));
      const Allocation b = imagined.allocate(size, static_cast<std::uint32_t>(k % 2));
      ASSERT_EQ(a.ok, b.ok);
      if (a.ok) {
        if (origin_real == 0) origin_real = a.address, origin_imagined = b.address;
        ASSERT_EQ(a.address - origin_real, b.address - origin_imagined);
        std::memset(HostSegmentSource::pointer(a.address), k, static_cast<std::size_t>(size.value));
        live.emplace_back(a, b);
      }
      while (live.size() > 12 || (!a.ok && !live.empty())) {
        const std::size_t at = static_cast<std::size_t>(k) % live.size();
        real.free(live[at].first.block);
        imagined.free(live[at].second.block);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
        if (!a.ok && live.size() < 4) break;
      }
    }
    EXPECT_EQ(real.stats().reserved.peak, imagined.stats().reserved.peak);
    EXPECT_GT(real.stats().allocated.peak, 0);
    EXPECT_EQ(host.in_use().value, real.stats().reserved.current);
  }
}

TEST(HostSource, FreshMemoryIsZeroAfterReturn) {
  HostSegmentSource host(16_MiB);
  const DeviceAddress a = host.allocate(4_MiB, 0);
  std::memset(HostSegmentSource::pointer(a), 1, 4 << 20);
  EXPECT_EQ(host.allocate(14_MiB, 0), 0u);
  host.release(a, 4_MiB);
  const DeviceAddress b = host.allocate(4_MiB, 0);
  EXPECT_EQ(HostSegmentSource::pointer(b)[100], std::byte{0});
  host.release(b, 4_MiB);
  EXPECT_EQ(host.in_use(), 0_B);
}

TEST(HostSource, ReportsWhatTheSystemRefuses) {
  EXPECT_THROW(HostSegmentSource(1_GiB, Bytes(std::int64_t{1} << 60)), RunError);
}

}  // namespace
}  // namespace foreshard
