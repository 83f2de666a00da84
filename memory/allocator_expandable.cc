// Expandable segments (rule A-7): one address range per stream and pool, mapped page by page as it
// is needed.

#include <algorithm>

#include "core/error.h"
#include "core/integers.h"
#include "memory/caching_allocator.h"

namespace foreshard {

std::int64_t CachingAllocator::page_bytes(Index pool) const {
  return is_small(pool) ? kSmallSegmentBytes.value : options_.large_segment_size.value;
}

// The size that a block can grow to.
std::int64_t CachingAllocator::reach(const Block& b) const {
  const bool grows = b.next != kNone && blocks_[b.next].state == State::kUnmapped;
  return b.size + (grows ? blocks_[b.next].size : 0);
}

// Best fit by what a block can grow to: goes on from the best fit as long as the next block reaches
// less far.
FreeBlocks::Cursor CachingAllocator::least_reach(const FreeBlocks& cached,
                                                 FreeBlocks::Cursor at) const {
  std::int64_t best = reach(blocks_[cached.block(at)]);
  for (;;) {
    const FreeBlocks::Cursor next = cached.next(at);
    if (cached.at_end(next)) return at;
    const std::int64_t other = reach(blocks_[cached.block(next)]);
    if (other >= best) return at;
    best = other;
    at = next;
  }
}

// Whether free and unmapped blocks from `i` on hold `size` bytes together.
bool CachingAllocator::has_room(Index i, std::int64_t size) const {
  std::int64_t room = 0;
  for (; room < size && i != kNone; i = blocks_[i].next) {
    if (blocks_[i].state != State::kCached && blocks_[i].state != State::kUnmapped) break;
    room += blocks_[i].size;
  }
  return room >= size;
}

// The lowest place that can grow to `size`: an unmapped block, or the free block before it. A new
// range if there is none; kNone if the addresses are exhausted.
CachingAllocator::Index CachingAllocator::find_expandable(Index pool, std::int64_t size) {
  for (const Index unmapped : pools_[pool].unmapped) {
    const Index before = blocks_[unmapped].prev;
    const Index start =
        before != kNone && blocks_[before].state == State::kCached ? before : unmapped;
    if (has_room(start, size)) return start;
  }
  // PyTorch reserves 9/8 of the device's memory, in whole pages.
  const std::int64_t page = page_bytes(pool);
  const std::int64_t capacity = source_.capacity().value;
  const std::int64_t span = round_up(capacity + capacity / 8, page);
  if (span < size) return kNone;
  const DeviceAddress base = source_.reserve(Bytes(span));
  if (base == 0) return kNone;
  Index range = static_cast<Index>(ranges_.size());
  if (unused_ranges_.empty()) {
    ranges_.emplace_back();
  } else {
    range = unused_ranges_.back();
    unused_ranges_.pop_back();
  }
  ranges_[range] = {base, span};
  const Index i = new_block(base, span, pool, State::kUnmapped);
  blocks_[i].range = range;
  insert_unmapped(i);
  return i;
}

// A block of at least `size` bytes that is in no pool; kNone when memory is short (pages mapped on
// the way stay cached).
CachingAllocator::Index CachingAllocator::expand(Index pool, std::int64_t size) {
  Index i = find_expandable(pool, size);
  if (i == kNone) return kNone;
  if (blocks_[i].state == State::kUnmapped && !map_block(i, std::min(blocks_[i].size, size)))
    return kNone;
  while (blocks_[i].size < size) {
    const Index next = blocks_[i].next;
    if (!map_block(next, std::min(size - blocks_[i].size, blocks_[next].size))) return kNone;
    i = next;
  }
  remove_cached(blocks_[i]);
  return i;
}

// Backs the front of an unmapped block by whole pages, merges it with free neighbours and puts it
// into its pool.
bool CachingAllocator::map_block(Index i, std::int64_t size) {
  const Index pool = blocks_[i].pool;
  const std::int64_t page = page_bytes(pool);
  const std::int64_t mapped = round_up(size, page);
  const DeviceAddress address = blocks_[i].address;
  if (!source_.map(address, Bytes(mapped))) return false;
  remove_unmapped(i);
  if (mapped < blocks_[i].size) {
    const Index rest = new_block(address + static_cast<DeviceAddress>(mapped),
                                 blocks_[i].size - mapped, pool, State::kUnmapped);
    Block& b = blocks_[i];
    Block& r = blocks_[rest];
    r.range = b.range;
    r.prev = i;
    r.next = b.next;
    if (r.next != kNone) blocks_[r.next].prev = rest;
    b.next = rest;
    b.size = mapped;
    insert_unmapped(rest);
  }
  for (const Index neighbour : {blocks_[i].prev, blocks_[i].next}) {
    if (neighbour != kNone && blocks_[neighbour].state == State::kCached) merge(i, neighbour);
  }
  insert_cached(i);
  stats_.reserved.add(mapped);
  ++stats_.device_allocs;
  notify(SegmentEvent::Kind::kMap, address, mapped, pool);
  return true;
}

// Returns the whole pages inside a cached block to the device; what sticks out on both sides stays
// cached.
void CachingAllocator::unmap_block(Index i) {
  const Block b = blocks_[i];
  const std::int64_t page = page_bytes(b.pool);
  const DeviceAddress base = ranges_[b.range].base;
  const auto begin = static_cast<std::int64_t>(b.address - base);
  const std::int64_t low = round_up(begin, page);
  const std::int64_t high = (begin + b.size) / page * page;
  if (low >= high) return;
  remove_cached(b);
  const DeviceAddress address = base + static_cast<DeviceAddress>(low);
  if (low > begin) {
    const Index before = new_block(b.address, low - begin, b.pool, State::kCached);
    blocks_[before].range = b.range;
    blocks_[before].prev = b.prev;
    blocks_[before].next = i;
    if (b.prev != kNone) blocks_[b.prev].next = before;
    blocks_[i].prev = before;
    insert_cached(before);
  }
  if (high < begin + b.size) {
    const Index after = new_block(base + static_cast<DeviceAddress>(high), begin + b.size - high,
                                  b.pool, State::kCached);
    blocks_[after].range = b.range;
    blocks_[after].prev = i;
    blocks_[after].next = b.next;
    if (b.next != kNone) blocks_[b.next].prev = after;
    blocks_[i].next = after;
    insert_cached(after);
  }
  source_.unmap(address, Bytes(high - low));
  blocks_[i].address = address;
  blocks_[i].size = high - low;
  blocks_[i].state = State::kUnmapped;
  for (const Index neighbour : {blocks_[i].prev, blocks_[i].next}) {
    if (neighbour != kNone && blocks_[neighbour].state == State::kUnmapped) merge(i, neighbour);
  }
  insert_unmapped(i);
  stats_.reserved.subtract(high - low);
  ++stats_.device_frees;
  notify(SegmentEvent::Kind::kUnmap, address, high - low, b.pool);
  if (is_split(blocks_[i])) return;
  remove_unmapped(i);
  source_.unreserve(base, Bytes(ranges_[b.range].span));
  ranges_[b.range] = {};
  unused_ranges_.push_back(b.range);
  recycle(i);
}

void CachingAllocator::insert_unmapped(Index i) {
  std::vector<Index>& list = pools_[blocks_[i].pool].unmapped;
  const auto before = [this](Index a, Index b) { return blocks_[a].address < blocks_[b].address; };
  list.insert(std::upper_bound(list.begin(), list.end(), i, before), i);
}

void CachingAllocator::remove_unmapped(Index i) {
  std::vector<Index>& list = pools_[blocks_[i].pool].unmapped;
  list.erase(std::find(list.begin(), list.end(), i));
}

}  // namespace foreshard
