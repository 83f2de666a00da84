#include "memory/caching_allocator.h"

#include <algorithm>

#include "core/error.h"

namespace foreshard {

CachingAllocator::CachingAllocator(const AllocatorOptions& options, SegmentSource& source,
                                   StreamProgress& progress, SegmentListener* listener)
    : options_(options),
      source_(source),
      progress_(progress),
      listener_(listener),
      max_split_(options.max_split_size.value),
      allowed_(INT64_MAX),
      power2_rounding_(options.roundup_power2_divisions !=
                       decltype(options.roundup_power2_divisions){}),
      gc_enabled_(options.memory_fraction && options.garbage_collection_threshold > 0) {
  options.validate();
  if (options.memory_fraction) {
    allowed_ = static_cast<std::int64_t>(*options.memory_fraction *
                                         static_cast<double>(source.capacity().value));
  }
}

void CachingAllocator::throw_bad_handle() {
  throw InternalError(
      "allocator: handle of a block that is not allocated (freed twice, or of another allocator)");
}

CachingAllocator::Index CachingAllocator::new_block(DeviceAddress address, std::int64_t size,
                                                    Index pool, State state) {
  Index i = unused_blocks_;
  if (i != kNone) {
    unused_blocks_ = blocks_[i].next;
  } else {
    i = static_cast<Index>(blocks_.size());
    blocks_.emplace_back();
  }
  Block& b = blocks_[i];
  const std::uint32_t serial = b.serial;
  b = Block{};
  b.serial = serial;
  b.address = address;
  b.size = size;
  b.pool = pool;
  b.state = state;
  return i;
}

void CachingAllocator::recycle(Index i) {
  blocks_[i].state = State::kUnused;
  blocks_[i].next = unused_blocks_;
  unused_blocks_ = i;
}

void CachingAllocator::grow_pools(std::uint32_t stream) {
  if (stream >= kMaxStreams) throw InternalError("allocator: stream indices must be dense, from 0");
  pools_.resize(2 * static_cast<std::size_t>(stream) + 2);
}

Allocation CachingAllocator::allocate(Bytes bytes, std::uint32_t stream) {
  Allocation a = try_allocate(bytes, stream);
  if (!a) [[unlikely]]
    a = retry_allocate(bytes, stream);
  return a;
}

Allocation CachingAllocator::try_allocate(Bytes bytes, std::uint32_t stream) {
  if (bytes.value <= 0) [[unlikely]] {
    if (bytes.value < 0) throw InternalError("allocator: request of a negative number of bytes");
    return Allocation{{}, 0, true};
  }
  if (!waiting_streams_.empty()) process_events();
  const std::int64_t size = power2_rounding_ || bytes > kNoByteLimit
                                ? round_request(bytes, options_).value
                                : round_to_block(bytes.value);
  const Index pool = pool_for(size, stream);
  FreeBlocks::Cursor at;
  if (find_cached(pool, size, at)) [[likely]]
    return hand_out_cached(pool, at, size, bytes.value);
  if (gc_enabled_) collect_garbage();
  Index block = new_segment(pool, size);
  if (block == kNone && release_oversize(pool, size)) block = new_segment(pool, size);
  if (block == kNone) return {};
  return hand_out_new(block, size, bytes.value);
}

Allocation CachingAllocator::retry_allocate(Bytes bytes, std::uint32_t stream) {
  const std::int64_t size = round_request(bytes, options_).value;
  const Index pool = pool_for(size, stream);
  release_cached();
  ++stats_.retries;
  const Index block = new_segment(pool, size);
  if (block == kNone) return out_of_memory(bytes, size, stream);
  return hand_out_new(block, size, bytes.value);
}

// best fit in the pool of this stream; false if no cached block may serve the request.
bool CachingAllocator::find_cached(Index pool, std::int64_t size, FreeBlocks::Cursor& at) {
  if (gc_enabled_) ++gc_calls_[pool & 1];
  const FreeBlocks& cached = pools_[pool].cached;
  at = cached.best_fit(size);
  if (cached.at_end(at)) return false;
  if (options_.expandable_segments) at = least_reach(cached, at);
  const std::int64_t found = cached.bytes(at);
  return size < max_split_ ? found < max_split_
                           : found < size + options_.max_non_split_rounding.value;
}

//
bool CachingAllocator::should_split(std::int64_t block_size, std::int64_t size, Index pool) const {
  const std::int64_t rest = block_size - size;
  if (is_small(pool) || options_.expandable_segments) return rest >= kMinBlockBytes.value;
  return size < max_split_ && rest > kSmallRequestBytes.value;
}

// Hands out a cached block or the front of it.
Allocation CachingAllocator::hand_out_cached(Index pool, FreeBlocks::Cursor at, std::int64_t size,
                                             std::int64_t requested) {
  FreeBlocks& cached = pools_[pool].cached;
  const Index block = cached.block(at);
  const bool was_split = is_split(blocks_[block]);
  const bool counts_split = blocks_[block].range == kNone;
  if (!should_split(blocks_[block].size, size, pool)) {
    cached.take(at);
    if (was_split && counts_split) {
      stats_.inactive_split.subtract(blocks_[block].size);
      stats_.inactive_split_blocks.subtract(1);
    }
    return start_use(block, requested);
  }
  const Index front = cut_front(block, size);
  Block& rest = blocks_[block];
  cached.replace(at, block, rest.size, rest.address);
  rest.gc_base = gc_calls_[pool & 1];
  if (counts_split) {
    // The inactive part shrinks, or a whole segment's rest becomes one.
    stats_.inactive_split.add(was_split ? -size : rest.size);
    stats_.inactive_split_blocks.add(was_split ? 0 : 1);
  }
  return start_use(front, requested);
}

// The same for a block that is in no pool: a new segment, or one that an expandable segment grew
// for the request.
Allocation CachingAllocator::hand_out_new(Index block, std::int64_t size, std::int64_t requested) {
  if (!should_split(blocks_[block].size, size, blocks_[block].pool))
    return start_use(block, requested);
  const Index front = cut_front(block, size);
  insert_cached(block);
  if (blocks_[block].range == kNone) {
    stats_.inactive_split.add(blocks_[block].size);
    stats_.inactive_split_blocks.add(1);
  }
  return start_use(front, requested);
}

// Makes the first `size` bytes of a block a block of their own.
CachingAllocator::Index CachingAllocator::cut_front(Index block, std::int64_t size) {
  const Index front =
      new_block(blocks_[block].address, size, blocks_[block].pool, State::kAllocated);
  Block& rest = blocks_[block];
  Block& b = blocks_[front];
  b.range = rest.range;
  b.prev = rest.prev;
  b.next = block;
  if (b.prev != kNone) blocks_[b.prev].next = front;
  rest.prev = front;
  rest.address += static_cast<DeviceAddress>(size);
  rest.size -= size;
  return front;
}

Allocation CachingAllocator::start_use(Index i, std::int64_t requested) {
  Block& b = blocks_[i];
  b.state = State::kAllocated;
  b.requested = requested;
  stats_.allocations.add(1);
  stats_.allocated.add(b.size);
  stats_.active.add(b.size);
  stats_.requested.add(requested);
  if (b.size >= max_split_) stats_.oversize_allocations.add(1);
  return Allocation{BlockHandle(i, b.serial), b.address, true};
}

void CachingAllocator::free(BlockHandle handle) {
  if (!handle.valid()) return;
  checked(handle);
  Block& b = blocks_[handle.index()];
  ++b.serial;
  stats_.allocations.subtract(1);
  stats_.allocated.subtract(b.size);
  if (b.size >= max_split_) stats_.oversize_allocations.subtract(1);
  if (b.uses != kNone) [[unlikely]] {
    record_events(handle.index());
  } else {
    make_cached(handle.index());
  }
}

// the block is no longer active; it merges with free neighbours and enters its pool.
void CachingAllocator::make_cached(Index i) {
  stats_.active.subtract(blocks_[i].size);
  stats_.requested.subtract(blocks_[i].requested);
  const auto free_neighbour = [this](Index k) {
    return k != kNone && blocks_[k].state == State::kCached ? k : kNone;
  };
  const Index before = free_neighbour(blocks_[i].prev);
  const Index after = free_neighbour(blocks_[i].next);
  std::int64_t split_bytes = 0;
  std::int64_t split_blocks = 0;
  if (before != kNone && after != kNone) {
    split_bytes -= blocks_[before].size;
    --split_blocks;
    merge(i, before);
  }
  const Index neighbour = after != kNone ? after : before;
  Block& b = blocks_[i];
  if (neighbour == kNone) {
    insert_cached(i);
  } else {
    FreeBlocks& cached = pools_[b.pool].cached;
    const FreeBlocks::Cursor at = cached.find(blocks_[neighbour].size, blocks_[neighbour].address);
    split_bytes -= blocks_[neighbour].size;
    --split_blocks;
    join(i, neighbour);
    mark_cached(b);
    cached.replace(at, i, b.size, b.address);
  }
  if (b.range != kNone) return;
  if (is_split(b)) {
    split_bytes += b.size;
    ++split_blocks;
  }
  stats_.inactive_split.add(split_bytes);
  stats_.inactive_split_blocks.add(split_blocks);
}

void CachingAllocator::mark_cached(Block& b) {
  b.state = State::kCached;
  b.requested = 0;
  b.gc_base = gc_calls_[b.pool & 1];
}

void CachingAllocator::insert_cached(Index i) {
  Block& b = blocks_[i];
  mark_cached(b);
  pools_[b.pool].cached.insert(i, b.size, b.address);
}

// `neighbour`, a cached or unmapped block next to `into`, leaves its pool and becomes part of it.
void CachingAllocator::merge(Index into, Index neighbour) {
  if (blocks_[neighbour].state == State::kCached) {
    remove_cached(blocks_[neighbour]);
  } else {
    remove_unmapped(neighbour);
  }
  join(into, neighbour);
}

void CachingAllocator::join(Index into, Index neighbour) {
  const Block& n = blocks_[neighbour];
  Block& b = blocks_[into];
  if (b.prev == neighbour) {
    b.address = n.address;
    b.prev = n.prev;
    if (b.prev != kNone) blocks_[b.prev].next = into;
  } else {
    b.next = n.next;
    if (b.next != kNone) blocks_[b.next].prev = into;
  }
  b.size += n.size;
  recycle(neighbour);
}

}  // namespace foreshard
