#pragma once

#include <cstdint>
#include <vector>

#include "core/units.h"
#include "memory/allocator_stats.h"
#include "memory/free_blocks.h"
#include "memory/options.h"
#include "memory/segment_source.h"

namespace foreshard {

/// Names one block in the program's hands; valid until it is freed. The default value names none.
class BlockHandle {
 public:
  BlockHandle() = default;
  BlockHandle(std::uint32_t index, std::uint32_t serial)
      : value_(std::uint64_t{serial} << 32 | index) {}
  bool valid() const { return value_ != UINT64_MAX; }
  std::uint32_t index() const { return static_cast<std::uint32_t>(value_); }
  std::uint32_t serial() const {
    return static_cast<std::uint32_t>(value_ >> 32);
  }  ///< Tells reuses of an index apart.
  bool operator==(const BlockHandle&) const = default;

 private:
  std::uint64_t value_ = UINT64_MAX;  // one word: a handle is copied at every call
};

/// Result of a request. `ok` is false when the memory is exhausted; then
/// CachingAllocator::last_out_of_memory() says why. A request of 0 bytes succeeds without a block,
/// as in PyTorch.
struct Allocation {
  BlockHandle block;
  DeviceAddress address = 0;
  bool ok = false;
  explicit operator bool() const { return ok; }
};

/// One block of a segment, for reports.
struct BlockInfo {
  enum class State { kAllocated, kPending, kCached };
  DeviceAddress address;
  Bytes size;
  Bytes requested;  ///< 0 for cached blocks.
  State state;
  bool operator==(const BlockInfo&) const = default;
};

/// One segment, or one contiguous mapped part of an expandable segment, with its blocks by address.
struct SegmentInfo {
  DeviceAddress address;
  Bytes size;
  std::uint32_t stream;
  bool small_pool;
  std::vector<BlockInfo> blocks;
  bool operator==(const SegmentInfo&) const = default;
};

/// The CUDA caching allocator of PyTorch 2.15, rule for rule, over any source of
/// memory. It decides from the requests, the stream progress and the order of addresses alone, so
/// equal calls give equal decisions.
///
/// Streams are dense indices from 0 (at most kMaxStreams); the allocation stream decides the pool.
/// Not thread-safe. A broken handle (freed twice, foreign) throws InternalError. Example:
///
///   VirtualSegmentSource device(Bytes(80'000'000'000));
///   InstantProgress progress;
///   CachingAllocator allocator(AllocatorOptions{}, device, progress);
///   Allocation a = allocator.allocate(Bytes(3 << 20), 0);   // takes a 20 MiB segment, splits it
///   allocator.free(a.block);
///
/// Source of the rules: c10/cuda/CUDACachingAllocator.cpp, class DeviceCachingAllocator.
class CachingAllocator {
 public:
  static constexpr std::uint32_t kMaxStreams = 1 << 16;

  /// `source`, `progress` and `listener` (may be null) must outlive the allocator. Throws
  /// InputError if an option is out of its range.
  CachingAllocator(const AllocatorOptions& options, SegmentSource& source, StreamProgress& progress,
                   SegmentListener* listener = nullptr);
  /// Returns all segments to the source, in use or not.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// A block of at least `bytes` for work on `stream` (A-6, all steps): try_allocate(), and if that
  /// fails retry_allocate().
  Allocation allocate(Bytes bytes, std::uint32_t stream);

  /// All steps of A-6 that do not wait for the device. A failure is not final and not counted.
  Allocation try_allocate(Bytes bytes, std::uint32_t stream);

  /// The last step of A-6, after try_allocate() failed for the same request: waits for every
  /// pending event, returns all unsplit cached blocks to the device and tries once more; counts a
  /// retry, and an OOM if it fails. A simulator lets its host reach the time of all
  /// pending_events() between the two calls.
  Allocation retry_allocate(Bytes bytes, std::uint32_t stream);

  /// Gives a block back. Does nothing for an invalid handle (the block of 0 bytes).
  void free(BlockHandle handle);

  /// The block is also used by `stream`: after free() it stays active until that stream passes the
  /// point of the free() and a later allocation notices it.
  void record_stream(BlockHandle handle, std::uint32_t stream);

  /// Returns blocks to their pools whose events are complete. try_allocate() does this first.
  void process_events();

  /// Waits for pending events and returns all unsplit cached blocks (torch.cuda.empty_cache).
  void empty_cache();

  /// Events that freed blocks still wait for, by stream in order of recording.
  std::vector<StreamProgress::Event> pending_events() const;

  DeviceAddress address(BlockHandle handle) const { return checked(handle).address; }
  /// Size of the block, at least the request.
  Bytes size(BlockHandle handle) const { return Bytes(checked(handle).size); }
  Bytes requested(BlockHandle handle) const { return Bytes(checked(handle).requested); }
  std::uint32_t stream(BlockHandle handle) const { return checked(handle).pool / 2; }

  const AllocatorStats& stats() const { return stats_; }
  void reset_peaks() { stats_.reset_peaks(); }
  const OutOfMemory& last_out_of_memory() const { return last_oom_; }
  const AllocatorOptions& options() const { return options_; }

  /// Every segment by stream, pool (small first) and address.
  std::vector<SegmentInfo> snapshot() const;

  /// What decides about requests to come, but for events and the age of cached blocks.
  struct Form {
    std::vector<std::int64_t> blocks;  ///< Of each its pool and state, size, request.
    std::vector<std::uint32_t>
        place;  ///< By BlockHandle::index(): the block's number in that order.
  };
  /// Equal blocks in equal order decide alike wherever their segments lie, as long as new segments
  /// lie above all others (AddressSpace places them so): addresses are only ever compared.
  Form form() const;

 private:
  using Index = std::uint32_t;
  static constexpr Index kNone = UINT32_MAX;

  enum class State : std::uint8_t { kUnused, kAllocated, kPending, kCached, kUnmapped };

  /// A piece of a segment. Pieces of one segment form a list by address and cover it without gaps.
  struct Block {
    DeviceAddress address = 0;
    std::int64_t size = 0;
    std::int64_t requested = 0;
    std::int64_t gc_base = 0;  ///< gc_calls_ of its pool kind when it became cached.
    Index prev = kNone;
    Index next = kNone;
    Index pool = 0;            ///< 2 * stream + (large ? 1 : 0).
    Index range = kNone;       ///< Expandable segment, or kNone.
    Index uses = kNone;        ///< List of other streams that use it.
    std::uint32_t events = 0;  ///< Events outstanding while kPending.
    std::uint32_t serial = 0;
    State state = State::kUnused;
  };

  struct Pool {
    FreeBlocks cached;            ///< By size, then address.
    std::vector<Index> unmapped;  ///< Expandable: address space without memory, by address.
  };

  /// Address space of one expandable segment.
  struct Range {
    DeviceAddress base = 0;
    std::int64_t span = 0;
  };

  struct StreamUse {
    std::uint32_t stream;
    Index next;
  };

  struct PendingEvent {
    StreamProgress::Event event;
    Index block;
  };

  /// Events of one stream, oldest first; [head, events.size()) are outstanding.
  struct EventQueue {
    std::vector<PendingEvent> events;
    std::size_t head = 0;
  };

  static bool is_small(Index pool) { return (pool & 1) == 0; }
  static std::uint32_t stream_of(Index pool) { return pool / 2; }
  bool is_split(const Block& b) const { return b.prev != kNone || b.next != kNone; }
  const Block& checked(BlockHandle handle) const {
    const Index i = handle.index();
    if (i >= blocks_.size() || blocks_[i].serial != handle.serial() ||
        blocks_[i].state != State::kAllocated) {
      throw_bad_handle();
    }
    return blocks_[i];
  }
  [[noreturn]] static void throw_bad_handle();
  Index new_block(DeviceAddress address, std::int64_t size, Index pool, State state);
  void recycle(Index i);

  // Requests and frees (caching_allocator.cc).
  Index pool_for(std::int64_t rounded, std::uint32_t stream) {
    const Index pool = 2 * stream + (rounded <= kSmallRequestBytes.value ? 0 : 1);
    if (pool >= pools_.size()) [[unlikely]]
      grow_pools(stream);
    return pool;
  }
  void grow_pools(std::uint32_t stream);
  bool find_cached(Index pool, std::int64_t size, FreeBlocks::Cursor& at);
  bool should_split(std::int64_t block_size, std::int64_t size, Index pool) const;
  Allocation hand_out_cached(Index pool, FreeBlocks::Cursor at, std::int64_t size,
                             std::int64_t requested);
  Allocation hand_out_new(Index block, std::int64_t size, std::int64_t requested);
  Index cut_front(Index block, std::int64_t size);
  Allocation start_use(Index i, std::int64_t requested);
  void make_cached(Index i);
  void insert_cached(Index i);
  void mark_cached(Block& b);
  void join(Index into, Index neighbour);
  void remove_cached(const Block& b) { pools_[b.pool].cached.remove(b.size, b.address); }
  void merge(Index into, Index neighbour);

  // Pending events (caching_allocator.cc).
  void record_events(Index i);
  void event_done(Index i);
  void synchronize_all();

  // Segments (allocator_segments.cc).
  bool begins_segment(Index i) const;
  Bytes segment_size(Index first) const;
  Index new_segment(Index pool, std::int64_t size);
  void release_segment(Index i);
  bool release_oversize(Index pool, std::int64_t size);
  void release_cached();
  void collect_garbage();
  Allocation out_of_memory(Bytes requested, std::int64_t size, std::uint32_t stream);

  // Expandable segments (allocator_expandable.cc).
  std::int64_t page_bytes(Index pool) const;
  std::int64_t reach(const Block& b) const;
  FreeBlocks::Cursor least_reach(const FreeBlocks& cached, FreeBlocks::Cursor at) const;
  Index expand(Index pool, std::int64_t size);
  Index find_expandable(Index pool, std::int64_t size);
  bool has_room(Index i, std::int64_t size) const;
  bool map_block(Index i, std::int64_t size);
  void unmap_block(Index i);
  void insert_unmapped(Index i);
  void remove_unmapped(Index i);
  void notify(SegmentEvent::Kind kind, DeviceAddress address, std::int64_t bytes, Index pool);

  AllocatorOptions options_;
  SegmentSource& source_;
  StreamProgress& progress_;
  SegmentListener* listener_;
  std::int64_t max_split_;
  std::int64_t allowed_;  ///< Limit of reserved bytes; INT64_MAX without memory_fraction.
  bool power2_rounding_;
  bool gc_enabled_;
  std::int64_t gc_calls_[2] = {0, 0};  ///< Searches of the small and the large pools.

  std::vector<Block> blocks_;
  Index unused_blocks_ = kNone;  ///< Recycled entries of blocks_, linked by next.
  std::vector<Pool> pools_;
  std::vector<Range> ranges_;
  std::vector<Index> unused_ranges_;
  std::vector<StreamUse> uses_;
  Index unused_uses_ = kNone;
  std::vector<EventQueue> queues_;              ///< By stream.
  std::vector<std::uint32_t> waiting_streams_;  ///< Streams with outstanding events, ascending.
  std::vector<Index> scratch_;
  AllocatorStats stats_;
  OutOfMemory last_oom_;
};

}  // namespace foreshard
