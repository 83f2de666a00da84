#include <gtest/gtest.h>

#include <random>

#include "memory/caching_allocator.h"
#include "memory/virtual_segment_source.h"
#include "tests/memory/slow_allocator.h"

namespace foreshard::fixture {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

/// Streams that advance when the test says so.
class SteppedProgress final : public StreamProgress {
 public:
  Event record(std::uint32_t stream) override { return (Event{stream} << 32) | ++recorded[stream]; }
  bool reached(Event e) override { return (e & UINT32_MAX) <= passed[e >> 32]; }
  void synchronize(Event e) override {
    passed[e >> 32] = std::max<std::uint64_t>(passed[e >> 32], e & UINT32_MAX);
  }
  std::map<std::uint64_t, std::uint64_t> recorded;
  std::map<std::uint64_t, std::uint64_t> passed;
};

class EventLog final : public SegmentListener {
 public:
  using Entry = std::tuple<int, DeviceAddress, std::int64_t, std::uint32_t>;
  void on_segment(const SegmentEvent& e) override {
    log.emplace_back(static_cast<int>(e.kind), e.address, e.bytes.value, e.stream);
  }
  std::vector<Entry> log;
};

template <typename T>
T pick(std::mt19937_64& random, std::initializer_list<T> choices) {
  return choices.begin()[random() % choices.size()];
}

AllocatorOptions random_options(std::mt19937_64& random) {
  AllocatorOptions o;
  o.expandable_segments = random() % 3 == 0;
  if (random() % 3 == 0) o.max_split_size = Bytes(pick(random, {20, 24, 32, 50}) * kMiB);
  if (random() % 3 == 0) o.max_non_split_rounding = Bytes(pick(random, {20, 40}) * kMiB);
  if (random() % 4 == 0) o.large_segment_size = Bytes(pick(random, {12, 20}) * kMiB);
  if (random() % 3 == 0) o.memory_fraction = pick(random, {0.5, 0.8, 1.0});
  if (random() % 2 == 0) o.garbage_collection_threshold = pick(random, {0.2, 0.5, 0.8});
  if (random() % 4 == 0) o.roundup_power2_divisions.fill(pick(random, {1u, 4u, 8u}));
  return o;
}

std::int64_t random_bytes(std::mt19937_64& random) {
  switch (random() % 6) {
    case 0:
      return static_cast<std::int64_t>(1 + random() % 4096);
    case 1:
      return static_cast<std::int64_t>(1 + random() % (2 * kMiB));
    case 2:
      return static_cast<std::int64_t>(1 + random() % (12 * kMiB));
    case 3:
      return pick(random, {8, 16, 25}) * kMiB;
    case 4:
      return pick(random, {512, 524288, 1048576, 1048577, 10485760, 20971520});
    default:
      return static_cast<std::int64_t>(1 + random() % (60 * kMiB));
  }
}

/// Drives both allocators with one random program and compares them after every call.
class TwinRun {
 public:
  explicit TwinRun(std::uint64_t seed)
      : random_(seed),
        options_(random_options(random_)),
        capacity_(pick(random_, {80, 200, 400, 1000, 3000}) * kMiB),
        source_(capacity_),
        slow_source_(capacity_),
        allocator_(options_, source_, progress_, &log_),
        slow_(options_, slow_source_, slow_progress_, slow_log_) {}

  void run(int calls) {
    for (int k = 0; k < calls && !::testing::Test::HasFailure(); ++k) {
      step();
      compare(k);
    }
  }

  std::int64_t retries() const { return slow_.retries; }
  std::int64_t ooms() const { return slow_.ooms; }

 private:
  void step() {
    const std::uint64_t what = random_() % 100;
    if (what < 48) return allocate();
    if (what < 84) return free();
    if (what < 92) return record_stream();
    if (what < 99) return advance();
    if (random_() % 2 == 0) return reset();
    allocator_.empty_cache();
    slow_.empty_cache();
  }

  void allocate() {
    const std::int64_t bytes = random_bytes(random_);
    const auto stream = static_cast<std::uint32_t>(random_() % 3);
    const Allocation a = allocator_.allocate(Bytes(bytes), stream);
    const auto slow = slow_.allocate(bytes, stream);
    ASSERT_EQ(a.ok, slow.has_value()) << "request of " << bytes;
    if (!a.ok) return;
    ASSERT_EQ(a.address, *slow) << "request of " << bytes;
    live_.push_back(a);
  }

  void free() {
    if (live_.empty()) return;
    const std::size_t k = random_() % live_.size();
    allocator_.free(live_[k].block);
    slow_.free(live_[k].address);
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(k));
  }

  void record_stream() {
    if (live_.empty()) return;
    const Allocation& a = live_[random_() % live_.size()];
    const auto stream = static_cast<std::uint32_t>(random_() % 4);
    allocator_.record_stream(a.block, stream);
    slow_.record_stream(a.address, stream);
  }

  void advance() {
    const std::uint64_t stream = random_() % 4;
    const std::uint64_t open = progress_.recorded[stream] - progress_.passed[stream];
    const std::uint64_t n = open == 0 ? 0 : 1 + random_() % open;
    progress_.passed[stream] += n;
    slow_progress_.passed[stream] += n;
  }

  void reset() {
    while (!live_.empty()) free();
  }

  void compare(int k) {
    const AllocatorStats& s = allocator_.stats();
    const SlowAllocator::Totals ours{s.allocated.current,      s.active.current,
                                     s.reserved.current,       s.requested.current,
                                     s.inactive_split.current, s.inactive_split_blocks.current,
                                     s.segments.current,       s.allocations.current};
    EXPECT_TRUE(ours == slow_.totals()) << "statistics differ after call " << k;
    EXPECT_EQ(s.retries, slow_.retries);
    EXPECT_EQ(s.ooms, slow_.ooms);
    EXPECT_EQ(log_.log, slow_log_.log) << "segment decisions differ after call " << k;
    EXPECT_EQ(source_.in_use(), slow_source_.in_use());
    EXPECT_EQ(source_.in_use().value, s.reserved.current);
    log_.log.clear();
    slow_log_.log.clear();
  }

  std::mt19937_64 random_;
  AllocatorOptions options_;
  Bytes capacity_;
  VirtualSegmentSource source_, slow_source_;
  SteppedProgress progress_, slow_progress_;
  EventLog log_, slow_log_;
  CachingAllocator allocator_;
  SlowAllocator slow_;
  std::vector<Allocation> live_;
};

TEST(Twin, SameDecisionsAsLinearSearch) {
  std::int64_t retries = 0, ooms = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    TwinRun run(seed);
    run.run(1200);
    retries += run.retries();
    ooms += run.ooms();
    if (HasFailure()) return;
  }
  EXPECT_GT(retries, 1000);
  EXPECT_GT(ooms, 100);
}

}  // namespace
}  // namespace foreshard::fixture
