// Blocks that other streams still use (rule A-9).

#include <algorithm>

#include "core/error.h"
#include "memory/caching_allocator.h"

namespace foreshard {

void CachingAllocator::record_stream(BlockHandle handle, std::uint32_t stream) {
  if (!handle.valid()) return;
  checked(handle);
  if (stream >= kMaxStreams) throw InternalError("allocator: stream indices must be dense, from 0");
  Block& b = blocks_[handle.index()];
  if (stream == stream_of(b.pool)) return;
  for (Index u = b.uses; u != kNone; u = uses_[u].next) {
    if (uses_[u].stream == stream) return;
  }
  Index u = unused_uses_;
  if (u != kNone) {
    unused_uses_ = uses_[u].next;
  } else {
    u = static_cast<Index>(uses_.size());
    uses_.emplace_back();
  }
  uses_[u] = {stream, b.uses};
  b.uses = u;
}

// Turns the uses of a freed block into events on their streams.
void CachingAllocator::record_events(Index i) {
  Block& b = blocks_[i];
  b.state = State::kPending;
  while (b.uses != kNone) {
    const Index u = b.uses;
    const std::uint32_t stream = uses_[u].stream;
    b.uses = uses_[u].next;
    uses_[u].next = unused_uses_;
    unused_uses_ = u;
    if (stream >= queues_.size()) queues_.resize(stream + 1);
    EventQueue& queue = queues_[stream];
    if (queue.events.empty()) {
      waiting_streams_.insert(
          std::upper_bound(waiting_streams_.begin(), waiting_streams_.end(), stream), stream);
    }
    queue.events.push_back({progress_.record(stream), i});
    ++b.events;
  }
}

void CachingAllocator::event_done(Index i) {
  if (--blocks_[i].events == 0) make_cached(i);
}

void CachingAllocator::process_events() {
  std::size_t kept = 0;
  for (const std::uint32_t stream : waiting_streams_) {
    EventQueue& queue = queues_[stream];
    while (queue.head < queue.events.size() && progress_.reached(queue.events[queue.head].event)) {
      event_done(queue.events[queue.head++].block);
    }
    if (queue.head == queue.events.size()) {
      queue.events.clear();
      queue.head = 0;
      continue;
    }
    if (queue.head > 64 && queue.head > queue.events.size() / 2) {
      queue.events.erase(queue.events.begin(),
                         queue.events.begin() + static_cast<std::ptrdiff_t>(queue.head));
      queue.head = 0;
    }
    waiting_streams_[kept++] = stream;
  }
  waiting_streams_.resize(kept);
}

void CachingAllocator::synchronize_all() {
  ++stats_.syncs;
  for (const std::uint32_t stream : waiting_streams_) {
    EventQueue& queue = queues_[stream];
    for (; queue.head < queue.events.size(); ++queue.head) {
      progress_.synchronize(queue.events[queue.head].event);
      event_done(queue.events[queue.head].block);
    }
    queue.events.clear();
    queue.head = 0;
  }
  waiting_streams_.clear();
}

std::vector<StreamProgress::Event> CachingAllocator::pending_events() const {
  std::vector<StreamProgress::Event> events;
  for (const std::uint32_t stream : waiting_streams_) {
    const EventQueue& queue = queues_[stream];
    for (std::size_t k = queue.head; k < queue.events.size(); ++k)
      events.push_back(queue.events[k].event);
  }
  return events;
}

}  // namespace foreshard
