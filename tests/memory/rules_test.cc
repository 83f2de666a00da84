// One test for each allocator rule A-*, with values worked out by hand from the rule's text.

#include <gtest/gtest.h>

#include "core/error.h"
#include "memory/caching_allocator.h"
#include "memory/virtual_segment_source.h"

namespace foreshard {
namespace {

using namespace literals;

constexpr std::int64_t kMiB = 1 << 20;

/// An allocator on a virtual device, with its decisions as text such as "+20M@0 -2M@1" (MiB,
/// stream; p = pages).
class Fixture : public SegmentListener {
 public:
  explicit Fixture(Bytes capacity = 1_GiB, const AllocatorOptions& options = {})
      : source(capacity), allocator(options, source, progress, this) {}

  void on_segment(const SegmentEvent& e) override {
    constexpr const char* kKinds[] = {"+", "-", "p+", "p-"};
    if (!log.empty()) log += ' ';
    log += kKinds[static_cast<int>(e.kind)] + std::to_string(e.bytes.value / kMiB) + "M@" +
           std::to_string(e.stream);
  }
  Allocation get(Bytes bytes, std::uint32_t stream = 0) {
    return allocator.allocate(bytes, stream);
  }
  std::string take_log() { return std::exchange(log, std::string()); }
  std::int64_t allocated() const { return allocator.stats().allocated.current; }
  std::int64_t active() const { return allocator.stats().active.current; }
  std::int64_t reserved() const { return allocator.stats().reserved.current; }

  std::string log;
  VirtualSegmentSource source;
  OnlyWhenWaitedProgress progress;
  CachingAllocator allocator;
};

TEST(Rules, A_1_SizesRoundTo512) {
  const AllocatorOptions plain;
  EXPECT_EQ(round_request(1_B, plain), 512_B);
  EXPECT_EQ(round_request(512_B, plain), 512_B);
  EXPECT_EQ(round_request(513_B, plain), 1024_B);
  EXPECT_EQ(round_request(1_MiB + 1_B, plain), 1_MiB + 512_B);
}

TEST(Rules, A_1_PowerOfTwoDivisions) {
  // Four divisions between 1024 and 2048 (the example of PyTorch's documentation): 1024, 1280,
  // 1536, 1792, 2048; but sizes up to 512 * divisions round plainly.
  AllocatorOptions o;
  o.roundup_power2_divisions.fill(4);
  EXPECT_EQ(round_request(1200_B, o), 1536_B);
  EXPECT_EQ(round_request(1200_KiB, o), 1280_KiB);
  EXPECT_EQ(round_request(1280_KiB, o), 1280_KiB);
  EXPECT_EQ(round_request(1281_KiB, o), 1536_KiB);
  EXPECT_EQ(round_request(1793_KiB, o), 2048_KiB);
  // By size: 8 divisions below 256 MiB, none from there on.
  o.roundup_power2_divisions.fill(0);
  for (std::size_t k = 0; k < 8; ++k) o.roundup_power2_divisions[k] = 8;
  EXPECT_EQ(round_request(129_MiB, o), 144_MiB);
  EXPECT_EQ(round_request(257_MiB, o), 257_MiB);
}

TEST(Rules, A_2_PoolsBySizeAndStream) {
  Fixture f;
  const Allocation small = f.get(1_MiB);
  const Allocation large = f.get(1_MiB + 1_B);
  EXPECT_EQ(f.take_log(), "+2M@0 +20M@0");
  f.allocator.free(small.block);
  f.allocator.free(large.block);
  f.get(1_MiB, 1);  // free memory of stream 0 does not serve stream 1
  EXPECT_EQ(f.take_log(), "+2M@1");
  EXPECT_EQ(f.get(1_MiB).address, small.address);
  EXPECT_EQ(f.get(2_MiB).address, large.address);
  EXPECT_EQ(f.take_log(), "");
}

TEST(Rules, A_3_SegmentSizes) {
  const AllocatorOptions o;
  EXPECT_EQ(segment_bytes_for(512_B, o), 2_MiB);
  EXPECT_EQ(segment_bytes_for(1_MiB, o), 2_MiB);
  EXPECT_EQ(segment_bytes_for(1_MiB + 512_B, o), 20_MiB);
  EXPECT_EQ(segment_bytes_for(10_MiB - 512_B, o), 20_MiB);
  EXPECT_EQ(segment_bytes_for(10_MiB, o), 10_MiB);
  EXPECT_EQ(segment_bytes_for(10_MiB + 512_B, o), 12_MiB);
}

TEST(Rules, A_4_BestFitThenLowestAddress) {
  Fixture f;
  const Allocation a = f.get(12_MiB), b = f.get(16_MiB), c = f.get(12_MiB);
  for (const Allocation& x : {c, b, a}) f.allocator.free(x.block);
  EXPECT_EQ(f.get(11_MiB + 512_KiB).address,
            a.address);  // 12 MiB fits best; of two, the lower address
  EXPECT_EQ(f.get(12_MiB).address, c.address);
  EXPECT_EQ(f.get(12_MiB).address, b.address);  // 16 MiB, split
  EXPECT_EQ(f.allocator.stats().inactive_split.current, 4 * kMiB);
}

TEST(Rules, A_4_SplitThresholds) {
  Fixture f;
  f.get(100_KiB);  // small pool: the rest of 2 MiB is split off
  EXPECT_EQ(f.allocated(), 100 * 1024);
  const Allocation large = f.get(11_MiB);  // segment 12 MiB, rest exactly 1 MiB: handed out whole
  EXPECT_EQ(f.allocator.size(large.block), 12_MiB);
  EXPECT_EQ(f.allocator.requested(large.block), 11_MiB);
  const Allocation larger = f.get(13_MiB - 512_B);  // segment 14 MiB, rest 1 MiB + 512 B: split
  EXPECT_EQ(f.allocator.size(larger.block), 13_MiB - 512_B);
  EXPECT_EQ(f.allocated(), 100 * 1024 + 12 * kMiB + 13 * kMiB - 512);
}

TEST(Rules, A_4_NeighboursMerge) {
  Fixture f;
  const Allocation a = f.get(5_MiB), b = f.get(5_MiB),
                   c = f.get(5_MiB);  // 5 + 5 + 5 + rest 5 of 20 MiB
  EXPECT_EQ(f.take_log(), "+20M@0");
  f.allocator.free(a.block);
  f.allocator.free(c.block);
  EXPECT_EQ(f.allocator.stats().inactive_split_blocks.current, 2);  // a, and c with the rest
  EXPECT_EQ(f.allocator.stats().inactive_split.current, 15 * kMiB);
  f.allocator.free(b.block);
  EXPECT_EQ(f.allocator.stats().inactive_split_blocks.current, 0);
  EXPECT_EQ(f.get(20_MiB).address, a.address);
  EXPECT_EQ(f.take_log(), "");
}

TEST(Rules, A_5_OversizeBlocks) {
  AllocatorOptions o;
  o.max_split_size = 30_MiB;
  Fixture f(1_GiB, o);
  const Allocation big = f.get(40_MiB);
  f.allocator.free(big.block);
  f.get(25_MiB);  // may not break the oversize block
  EXPECT_EQ(f.take_log(), "+40M@0 +26M@0");
  const Allocation again = f.get(31_MiB);  // oversize request within 20 MiB of it: whole block
  EXPECT_EQ(again.address, big.address);
  EXPECT_EQ(f.allocator.size(again.block), 40_MiB);
  f.allocator.free(again.block);
  const Allocation huge = f.get(60_MiB);
  f.allocator.free(huge.block);
  f.take_log();
  f.get(40_MiB);  // the 40 MiB block
  f.get(40_MiB);  // 60 >= 40 + 20: too wasteful, a new segment
  EXPECT_EQ(f.take_log(), "+40M@0");
}

TEST(Rules, A_6_ReleasesOversizeBeforeEverything) {
  AllocatorOptions o;
  o.max_split_size = 30_MiB;
  Fixture f(100_MiB, o);
  const Allocation a = f.get(12_MiB), b = f.get(60_MiB);
  f.allocator.free(a.block);
  f.allocator.free(b.block);
  f.take_log();
  EXPECT_TRUE(f.get(50_MiB).ok);  // 60 < 50 + 20: served from the cache
  EXPECT_TRUE(
      f.get(30_MiB)
          .ok);  // 28 MiB free and no oversize block cached: the retry returns the 12 MiB block
  EXPECT_EQ(f.take_log(), "-12M@0 +30M@0");
  EXPECT_EQ(f.allocator.stats().retries, 1);

  Fixture g(100_MiB, o);
  const Allocation x = g.get(12_MiB), y = g.get(60_MiB);
  g.allocator.free(x.block);
  g.allocator.free(y.block);
  g.take_log();
  EXPECT_TRUE(
      g.get(35_MiB)
          .ok);  // 60 >= 35 + 20; 28 MiB free: returns the 60 MiB block, keeps the 12 MiB one
  EXPECT_EQ(g.take_log(), "-60M@0 +36M@0");
  EXPECT_EQ(g.allocator.stats().retries, 0);
}

TEST(Rules, A_6_RetryReturnsUnsplitBlocksOfAllStreams) {
  Fixture f(60_MiB);
  const Allocation a = f.get(5_MiB, 0);   // 20 MiB segment, split: stays
  const Allocation b = f.get(12_MiB, 1);  // whole: goes
  const Allocation c = f.get(1_KiB, 2);   // 2 MiB segment, whole after free: goes
  f.allocator.free(b.block);
  f.allocator.free(c.block);
  EXPECT_EQ(f.take_log(), "+20M@0 +12M@1 +2M@2");
  EXPECT_TRUE(f.get(40_MiB, 0).ok);
  EXPECT_EQ(f.take_log(), "-12M@1 -2M@2 +40M@0");
  EXPECT_EQ(f.allocator.stats().retries, 1);
  EXPECT_EQ(f.allocator.stats().ooms, 0);
  EXPECT_EQ(f.reserved(), 60 * kMiB);
  f.allocator.free(a.block);
}

TEST(Rules, A_6_OutOfMemory) {
  Fixture f(50_MiB);
  f.get(12_MiB);
  const Allocation failed = f.get(40_MiB - 1_B, 0);
  EXPECT_FALSE(failed.ok);
  EXPECT_EQ(f.allocator.stats().retries, 1);
  EXPECT_EQ(f.allocator.stats().ooms, 1);
  const OutOfMemory& oom = f.allocator.last_out_of_memory();
  EXPECT_EQ(oom.requested, 40_MiB - 1_B);
  EXPECT_EQ(oom.segment, 40_MiB);
  EXPECT_EQ(oom.allocated, 12_MiB);
  EXPECT_EQ(oom.reserved, 12_MiB);
  EXPECT_EQ(oom.device_free, 38_MiB);
  EXPECT_NE(oom.text().find("tried to allocate 40.0 MiB"), std::string::npos) << oom.text();
  EXPECT_TRUE(f.get(38_MiB).ok);  // the allocator stays usable
}

TEST(Rules, A_6_TwoStepsForAHostWithAClock) {
  Fixture f(40_MiB);
  const Allocation a = f.get(30_MiB);
  f.allocator.record_stream(a.block, 3);
  f.allocator.free(a.block);
  EXPECT_FALSE(f.allocator.try_allocate(20_MiB, 0).ok);
  EXPECT_EQ(f.allocator.stats().retries, 0);
  EXPECT_EQ(f.allocator.pending_events().size(), 1u);  // what the host has to wait for
  EXPECT_TRUE(f.allocator.retry_allocate(20_MiB, 0).ok);
  EXPECT_EQ(f.take_log(), "+30M@0 -30M@0 +20M@0");
  EXPECT_EQ(f.allocator.stats().retries, 1);
}

TEST(Rules, A_6_GarbageCollection) {
  AllocatorOptions o;
  o.memory_fraction = 1.0;
  o.garbage_collection_threshold = 0.5;
  Fixture f(100_MiB, o);
  const Allocation a = f.get(12_MiB), b = f.get(14_MiB), c = f.get(30_MiB);  // searches 1, 2, 3
  f.allocator.free(a.block);
  EXPECT_EQ(f.get(12_MiB).address, a.address);  // search 4
  f.allocator.free(b.block);                    // free since search 4
  f.allocator.free(c.block);
  f.allocator.free(f.get(29_MiB + 512_KiB).block);  // search 5: 30 MiB block, free since 5
  f.take_log();
  // Search 6 misses; 56 MiB reserved > 50. Ages: b 2, c 1, average 1.5: b goes, 14 >= 6 is enough.
  f.get(31_MiB);
  EXPECT_EQ(f.take_log(), "-14M@0 +32M@0");
}

TEST(Rules, A_6_MemoryFractionLimits) {
  AllocatorOptions o;
  o.memory_fraction = 0.5;
  Fixture f(100_MiB, o);
  EXPECT_FALSE(f.get(51_MiB).ok);
  EXPECT_EQ(f.allocator.last_out_of_memory().allowed, 50_MiB);
  EXPECT_TRUE(f.get(50_MiB).ok);
}

TEST(Rules, A_7_ExpandableSegmentGrowsAndShrinksByPages) {
  AllocatorOptions o;
  o.expandable_segments = true;
  Fixture f(100_MiB, o);
  const Allocation a = f.get(30_MiB);  // two pages of 20 MiB; rest 10 MiB
  const Allocation b = f.get(15_MiB);  // 10 + 5: one more page behind it, no gap
  EXPECT_EQ(b.address, a.address + 30 * kMiB);
  EXPECT_EQ(f.take_log(), "p+40M@0 p+20M@0");
  EXPECT_EQ(f.reserved(), 60 * kMiB);
  EXPECT_EQ(f.allocated(), 45 * kMiB);  // no unsplit rest: split at 512 B
  f.get(1_KiB);
  EXPECT_EQ(f.take_log(), "p+2M@0");
  f.allocator.free(a.block);
  // 38 MiB left of the device; 60 MiB do not fit without the page inside a ([0, 20) whole; [20, 30)
  // is part of a page).
  EXPECT_FALSE(f.get(60_MiB).ok);
  EXPECT_EQ(f.allocator.stats().segments.current, 0);
  EXPECT_EQ(f.reserved(), 42 * kMiB);
  const Allocation c =
      f.get(25_MiB);  // unmapped [0, 20) before the free [20, 30): the lowest place
  EXPECT_EQ(c.address, a.address);
}

TEST(Rules, A_8_ThreeStatistics) {
  Fixture f;
  const Allocation a = f.get(12_MiB);
  f.allocator.record_stream(a.block, 1);
  f.allocator.free(a.block);
  EXPECT_EQ(f.allocated(), 0);
  EXPECT_EQ(f.active(), 12 * kMiB);
  EXPECT_EQ(f.reserved(), 12 * kMiB);
  f.progress.wait_for_all();
  f.allocator.process_events();
  EXPECT_EQ(f.active(), 0);
  EXPECT_EQ(f.reserved(), 12 * kMiB);
  EXPECT_EQ(f.allocator.stats().allocated.peak, 12 * kMiB);
  f.allocator.reset_peaks();
  EXPECT_EQ(f.allocator.stats().allocated.peak, 0);
  EXPECT_EQ(f.allocator.stats().reserved.peak, 12 * kMiB);
  f.allocator.empty_cache();
  EXPECT_EQ(f.reserved(), 0);
}

TEST(Rules, A_9_ReusableOnlyAfterALaterAllocationNotices) {
  Fixture f;
  const Allocation a = f.get(12_MiB);
  f.allocator.record_stream(a.block, 0);  // its own stream: no effect
  f.allocator.record_stream(a.block, 1);
  f.allocator.record_stream(a.block, 1);  // once is enough
  f.allocator.record_stream(a.block, 2);
  f.allocator.free(a.block);
  EXPECT_EQ(f.allocator.pending_events().size(), 2u);
  const Allocation b = f.get(12_MiB);
  EXPECT_NE(b.address, a.address);
  f.progress.wait_for_all();
  EXPECT_EQ(f.active(), 24 * kMiB);  // nobody has looked yet
  EXPECT_EQ(f.get(12_MiB).address, a.address);
  EXPECT_EQ(f.active(), 24 * kMiB);
}

TEST(Rules, A_10_StreamsHaveSeparateHighWaterMarks) {
  Fixture f;
  for (const std::uint32_t stream : {0u, 1u, 2u}) f.allocator.free(f.get(100_MiB, stream).block);
  EXPECT_EQ(f.allocator.stats().allocated.peak, 100 * kMiB);
  EXPECT_EQ(f.reserved(), 300 * kMiB);
}

TEST(Rules, A_11_SmallTensorsCost512) {
  Fixture f;
  for (int k = 0; k < 10; ++k) f.get(8_B);
  EXPECT_EQ(f.allocated(), 5120);
  EXPECT_EQ(f.allocator.stats().requested.current, 80);
}

TEST(Rules, A_12_LargeSegmentSizeIsConfigurable) {
  Fixture f(1_GiB, parse_alloc_conf("large_segment_size_mb:12"));
  f.get(3_MiB);
  EXPECT_EQ(f.take_log(), "+12M@0");
}

TEST(Allocator, ZeroBytesTakeNothing) {
  Fixture f;
  const Allocation a = f.get(0_B);
  EXPECT_TRUE(a.ok);
  EXPECT_FALSE(a.block.valid());
  f.allocator.record_stream(a.block, 1);
  f.allocator.free(a.block);
  EXPECT_EQ(f.take_log(), "");
}

TEST(Allocator, BrokenUseIsReported) {
  Fixture f;
  const Allocation a = f.get(1_KiB);
  f.allocator.free(a.block);
  EXPECT_THROW(f.allocator.free(a.block), InternalError);
  f.get(1_KiB);  // the same memory under a new handle
  EXPECT_THROW(f.allocator.free(a.block), InternalError);
  EXPECT_THROW(f.allocator.size(BlockHandle{77, 0}), InternalError);
  EXPECT_THROW(f.get(Bytes(-1)), InternalError);
  EXPECT_THROW(f.get(1_KiB, 1 << 20), InternalError);
}

TEST(Allocator, EnormousRequestsFail) {
  Fixture f(VirtualSegmentSource::kUnlimited);
  EXPECT_FALSE(f.get(Bytes(INT64_MAX)).ok);
  EXPECT_FALSE(f.get(Bytes(std::int64_t{1} << 61)).ok);
  EXPECT_TRUE(f.get(Bytes(std::int64_t{1} << 45)).ok);
}

TEST(Allocator, SnapshotShowsBlocks) {
  Fixture f;
  const Allocation a = f.get(5_MiB, 1), b = f.get(6_MiB, 1);
  f.get(100_B, 0);
  f.allocator.record_stream(a.block, 2);
  f.allocator.free(a.block);
  const auto segments = f.allocator.snapshot();
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_TRUE(segments[0].small_pool);
  EXPECT_EQ(segments[0].size, 2_MiB);
  EXPECT_EQ(segments[1].stream, 1u);
  ASSERT_EQ(segments[1].blocks.size(), 3u);
  EXPECT_EQ(segments[1].blocks[0].state, BlockInfo::State::kPending);
  EXPECT_EQ(segments[1].blocks[1].address, b.address);
  EXPECT_EQ(segments[1].blocks[1].requested, 6_MiB);
  EXPECT_EQ(segments[1].blocks[2].state, BlockInfo::State::kCached);
  EXPECT_EQ(segments[1].blocks[2].size, 9_MiB);
}

}  // namespace
}  // namespace foreshard
