// Segments: what happens on a miss (rules) and on the way back to the device.

#include <algorithm>
#include <exception>
#include <tuple>

#include "memory/caching_allocator.h"

namespace foreshard {

namespace {

/// One segment that the driver does not take back keeps none of the others.
template <typename Return>
void give_back(Return return_memory) noexcept {
  try {
    return_memory();
  } catch (const std::exception&) {
  }
}

}  // namespace

CachingAllocator::~CachingAllocator() {
  for (Index i = 0; i < blocks_.size(); ++i) {
    if (!begins_segment(i)) continue;
    const Bytes size = segment_size(i);
    give_back([&] {
      if (blocks_[i].range != kNone)
        source_.unmap(blocks_[i].address, size);
      else
        source_.release(blocks_[i].address, size);
    });
  }
  for (const Range& range : ranges_) {
    if (range.span > 0) give_back([&] { source_.unreserve(range.base, Bytes(range.span)); });
  }
}

// Whether a block is the first of a segment, or of a mapped part of an expandable segment.
bool CachingAllocator::begins_segment(Index i) const {
  const Block& b = blocks_[i];
  if (b.state == State::kUnused || b.state == State::kUnmapped) return false;
  return b.prev == kNone || blocks_[b.prev].state == State::kUnmapped;
}

Bytes CachingAllocator::segment_size(Index first) const {
  std::int64_t size = 0;
  for (Index k = first; k != kNone && blocks_[k].state != State::kUnmapped; k = blocks_[k].next) {
    size += blocks_[k].size;
  }
  return Bytes(size);
}

void CachingAllocator::notify(SegmentEvent::Kind kind, DeviceAddress address, std::int64_t bytes,
                              Index pool) {
  if (listener_ != nullptr) listener_->on_segment({kind, address, Bytes(bytes), stream_of(pool)});
}

// takes a segment (or grows an expandable one) and returns a block of at least `size` that is
// in no pool.
CachingAllocator::Index CachingAllocator::new_segment(Index pool, std::int64_t size) {
  const std::int64_t segment = segment_bytes_for(Bytes(size), options_).value;
  if (segment > allowed_ || stats_.reserved.current > allowed_ - segment) return kNone;
  if (options_.expandable_segments) return expand(pool, size);
  const DeviceAddress address = source_.allocate(Bytes(segment), stream_of(pool));
  if (address == 0) return kNone;
  stats_.reserved.add(segment);
  stats_.segments.add(1);
  ++stats_.device_allocs;
  if (segment >= max_split_) stats_.oversize_segments.add(1);
  notify(SegmentEvent::Kind::kAllocate, address, segment, pool);
  return new_block(address, segment, pool, State::kUnused);
}

// Returns a cached block that is a whole segment to the device.
void CachingAllocator::release_segment(Index i) {
  const Block b = blocks_[i];
  remove_cached(b);
  recycle(i);
  source_.release(b.address, Bytes(b.size));
  stats_.reserved.subtract(b.size);
  stats_.segments.subtract(1);
  ++stats_.device_frees;
  if (b.size >= max_split_) stats_.oversize_segments.subtract(1);
  notify(SegmentEvent::Kind::kRelease, b.address, b.size, b.pool);
}

// A-6 with max_split_size: returns the smallest oversize block of this pool that is large enough
// for the request, or else the largest ones until their sum is. False if that was not enough.
bool CachingAllocator::release_oversize(Index pool, std::int64_t size) {
  if (max_split_ == kNoByteLimit.value || options_.expandable_segments) return false;
  const std::int64_t wanted = std::max(size, max_split_);
  const FreeBlocks& cached = pools_[pool].cached;
  const FreeBlocks::Cursor at = cached.best_fit(wanted);
  if (!cached.at_end(at)) {
    release_segment(cached.block(at));
    return true;
  }
  std::int64_t released = 0;
  while (released < wanted && !cached.empty()) {
    const Index largest = cached.largest();
    if (blocks_[largest].size < max_split_) break;
    released += blocks_[largest].size;
    release_segment(largest);
  }
  return released >= wanted;
}

// waits for every pending event, then returns every unsplit cached block (whole pages of
// expandable segments) to the device, the large pools first.
void CachingAllocator::release_cached() {
  synchronize_all();
  for (const Index kind : {Index{1}, Index{0}}) {
    for (Index pool = kind; pool < pools_.size(); pool += 2) {
      scratch_.clear();
      pools_[pool].cached.append_to(scratch_);
      for (const Index i : scratch_) {
        if (blocks_[i].range != kNone) {
          unmap_block(i);
        } else if (!is_split(blocks_[i])) {
          release_segment(i);
        }
      }
    }
  }
}

void CachingAllocator::empty_cache() { release_cached(); }

// above the threshold, returns unsplit large blocks of at least average age, round by round,
// until enough is returned. Age counts searches of the large pools since the block became cached.
void CachingAllocator::collect_garbage() {
  const auto threshold = static_cast<std::int64_t>(options_.garbage_collection_threshold *
                                                   static_cast<double>(allowed_));
  if (stats_.reserved.current <= threshold) return;
  const std::int64_t target = stats_.reserved.current - threshold;
  std::int64_t total_age = 0;
  std::vector<Index> candidates;
  for (Index pool = 1; pool < pools_.size(); pool += 2) pools_[pool].cached.append_to(candidates);
  std::erase_if(candidates,
                [this](Index i) { return is_split(blocks_[i]) || blocks_[i].range != kNone; });
  for (const Index i : candidates) total_age += gc_calls_[1] - blocks_[i].gc_base;
  std::int64_t reclaimed = 0;
  bool progress = true;
  while (reclaimed < target && progress && !candidates.empty()) {
    const double limit = static_cast<double>(total_age) / static_cast<double>(candidates.size());
    progress = false;
    std::size_t kept = 0;
    for (const Index i : candidates) {
      const std::int64_t age = gc_calls_[1] - blocks_[i].gc_base;
      if (static_cast<double>(age) < limit) {
        candidates[kept++] = i;
        continue;
      }
      progress = true;
      reclaimed += blocks_[i].size;
      total_age -= age;
      release_segment(i);
    }
    candidates.resize(kept);
  }
}

Allocation CachingAllocator::out_of_memory(Bytes requested, std::int64_t size,
                                           std::uint32_t stream) {
  ++stats_.ooms;
  const Bytes capacity = source_.capacity();
  last_oom_ = {.requested = requested,
               .segment = segment_bytes_for(Bytes(size), options_),
               .allocated = Bytes(stats_.allocated.current),
               .reserved = Bytes(stats_.reserved.current),
               .capacity = capacity,
               .device_free = capacity - source_.in_use(),
               .allowed = allowed_ == INT64_MAX ? capacity : Bytes(allowed_),
               .stream = stream};
  return {};
}

std::vector<SegmentInfo> CachingAllocator::snapshot() const {
  std::vector<SegmentInfo> segments;
  for (Index i = 0; i < blocks_.size(); ++i) {
    if (!begins_segment(i)) continue;
    const Block& head = blocks_[i];
    SegmentInfo segment{
        head.address, segment_size(i), stream_of(head.pool), is_small(head.pool), {}};
    for (Index k = i; k != kNone && blocks_[k].state != State::kUnmapped; k = blocks_[k].next) {
      const Block& b = blocks_[k];
      const auto state = b.state == State::kCached    ? BlockInfo::State::kCached
                         : b.state == State::kPending ? BlockInfo::State::kPending
                                                      : BlockInfo::State::kAllocated;
      segment.blocks.push_back({b.address, Bytes(b.size), Bytes(b.requested), state});
    }
    segments.push_back(std::move(segment));
  }
  std::sort(segments.begin(), segments.end(), [](const SegmentInfo& a, const SegmentInfo& b) {
    return std::tuple(a.stream, !a.small_pool, a.address) <
           std::tuple(b.stream, !b.small_pool, b.address);
  });
  return segments;
}

CachingAllocator::Form CachingAllocator::form() const {
  std::vector<Index> heads;  // of segments and expandable ranges
  for (Index i = 0; i < blocks_.size(); ++i)
    if (blocks_[i].state != State::kUnused && blocks_[i].prev == kNone) heads.push_back(i);
  std::sort(heads.begin(), heads.end(), [this](Index a, Index b) {
    return std::tuple(blocks_[a].pool, blocks_[a].address) <
           std::tuple(blocks_[b].pool, blocks_[b].address);
  });
  Form form;
  form.blocks.reserve(3 * blocks_.size());
  form.place.resize(blocks_.size());
  std::uint32_t place = 0;
  for (const Index head : heads) {
    for (Index i = head; i != kNone; i = blocks_[i].next) {
      const Block& b = blocks_[i];
      const std::int64_t first = i == head ? 8 : 0;
      form.blocks.push_back(std::int64_t{b.pool} * 16 + first + static_cast<std::int64_t>(b.state));
      form.blocks.push_back(b.size);
      form.blocks.push_back(b.requested);
      form.place[i] = place++;
    }
  }
  return form;
}

}  // namespace foreshard
