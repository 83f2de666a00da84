#pragma once

// The allocator's rules once more, as plainly as they can be said: every segment is a list of
// pieces in address order, every question is answered by looking at all pieces. The oracle of the
// property test; shares no code with the real one but the sizes of, which have tests of
// their own.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "memory/options.h"
#include "memory/segment_source.h"

namespace foreshard::fixture {

class SlowAllocator {
 public:
  SlowAllocator(const AllocatorOptions& options, SegmentSource& source, StreamProgress& progress,
                SegmentListener& listener)
      : o_(options), source_(source), progress_(progress), listener_(listener) {
    if (o_.memory_fraction) {
      allowed_ = static_cast<std::int64_t>(*o_.memory_fraction *
                                           static_cast<double>(source.capacity().value));
    }
  }

  struct Totals {
    std::int64_t allocated = 0, active = 0, reserved = 0, requested = 0, inactive_split = 0,
                 inactive_split_blocks = 0;
    std::int64_t segments = 0, allocations = 0;
    bool operator==(const Totals&) const = default;
  };

  /// Address of the new block, or nothing when memory is exhausted.
  std::optional<DeviceAddress> allocate(std::int64_t bytes, std::uint32_t stream) {
    process_events();
    const std::int64_t size = round_request(Bytes(bytes), o_).value;
    const bool small = size <= (1 << 20);
    auto place = search(size, small, stream);
    if (!place) {
      if (o_.memory_fraction && o_.garbage_collection_threshold > 0) collect_garbage();
      place = grow(size, small, stream);
      if (!place && release_oversize(size, small, stream)) place = grow(size, small, stream);
      if (!place) {
        empty_cache();
        ++retries;
        place = grow(size, small, stream);
      }
    }
    if (!place) {
      ++ooms;
      return std::nullopt;
    }
    return use(*place, size, bytes);
  }

  void record_stream(DeviceAddress address, std::uint32_t stream) {
    const Place p = find_used(address);
    if (p.segment->stream != stream) p.piece().uses.insert(stream);
  }

  void free(DeviceAddress address) {
    const Place p = find_used(address);
    if (p.piece().uses.empty()) return make_free(p);
    p.piece().state = kPending;
    for (const std::uint32_t stream : p.piece().uses) {
      events_[stream].push_back({progress_.record(stream), address});
      ++p.piece().events;
    }
    p.piece().uses.clear();
  }

  void process_events() {
    for (auto& [stream, queue] : events_) {
      while (!queue.empty() && progress_.reached(queue.front().first)) {
        one_event_done(queue.front().second);
        queue.pop_front();
      }
    }
  }

  void empty_cache() {
    for (auto& [stream, queue] : events_) {
      for (const auto& [event, address] : queue) {
        progress_.synchronize(event);
        one_event_done(address);
      }
      queue.clear();
    }
    for (const bool small : {false, true}) {
      for (const DeviceAddress address : free_addresses(small)) {
        const Place p = find_free(address);
        if (p.segment->expandable) {
          unmap_pages(p);
        } else if (p.segment->pieces.size() == 1) {
          release(p.segment);
        }
      }
    }
  }

  Totals totals() const {
    Totals t;
    for (const Segment& s : segments_) {
      if (!s.expandable) ++t.segments;
      for (const Piece& p : s.pieces) {
        if (p.state != kUnmapped) t.reserved += p.size;
        if (p.state == kUsed) t.allocated += p.size, ++t.allocations;
        if (p.state == kUsed || p.state == kPending) t.active += p.size, t.requested += p.requested;
        if (p.state == kFree && !s.expandable && s.pieces.size() > 1) {
          t.inactive_split += p.size, ++t.inactive_split_blocks;
        }
      }
    }
    return t;
  }

  std::int64_t retries = 0;
  std::int64_t ooms = 0;

 private:
  enum State { kUsed, kPending, kFree, kUnmapped };
  struct Piece {
    DeviceAddress address;
    std::int64_t size;
    State state;
    std::int64_t requested = 0;
    std::int64_t free_since = 0;  ///< Searches of its pool kind when it became free.
    std::set<std::uint32_t> uses = {};
    int events = 0;
  };
  struct Segment {
    DeviceAddress base;
    std::uint32_t stream;
    bool small;
    bool expandable;
    std::vector<Piece> pieces;
  };
  struct Place {
    std::list<Segment>::iterator segment;
    std::size_t index;
    Piece& piece() const { return segment->pieces[index]; }
  };

  template <typename Wanted>
  Place find(Wanted wanted) {
    for (auto s = segments_.begin(); s != segments_.end(); ++s) {
      for (std::size_t k = 0; k < s->pieces.size(); ++k) {
        if (wanted(s->pieces[k])) return {s, k};
      }
    }
    throw std::logic_error("slow allocator: no such block");
  }
  Place find_used(DeviceAddress a) {
    return find([a](const Piece& p) { return p.state == kUsed && p.address == a; });
  }
  Place find_free(DeviceAddress a) {
    return find([a](const Piece& p) { return p.state == kFree && p.address == a; });
  }

  /// Addresses of free pieces of all small or all large pools by stream, size, address.
  std::vector<DeviceAddress> free_addresses(bool small) const {
    std::vector<std::tuple<std::uint32_t, std::int64_t, DeviceAddress>> order;
    for (const Segment& s : segments_) {
      for (const Piece& p : s.pieces) {
        if (p.state == kFree && s.small == small) order.emplace_back(s.stream, p.size, p.address);
      }
    }
    std::sort(order.begin(), order.end());
    std::vector<DeviceAddress> addresses;
    for (const auto& entry : order) addresses.push_back(std::get<2>(entry));
    return addresses;
  }

  std::vector<Place> free_places(bool small, std::uint32_t stream) {
    std::vector<Place> places;
    for (const DeviceAddress a : free_addresses(small)) {
      const Place p = find_free(a);
      if (p.segment->stream == stream) places.push_back(p);
    }
    return places;
  }

  std::int64_t reach(const Place& p) const {
    const auto& pieces = p.segment->pieces;
    const bool grows = p.index + 1 < pieces.size() && pieces[p.index + 1].state == kUnmapped;
    return p.piece().size + (grows ? pieces[p.index + 1].size : 0);
  }

  std::optional<Place> search(std::int64_t size, bool small, std::uint32_t stream) {
    ++searches_[small];
    std::vector<Place> fitting;
    for (const Place& p : free_places(small, stream)) {
      if (p.piece().size >= size) fitting.push_back(p);
    }
    if (fitting.empty()) return std::nullopt;
    std::size_t k = 0;
    if (o_.expandable_segments) {
      while (k + 1 < fitting.size() && reach(fitting[k + 1]) < reach(fitting[k])) ++k;
    }
    const std::int64_t found = fitting[k].piece().size;
    const std::int64_t limit = o_.max_split_size.value;
    if (size < limit && found >= limit) return std::nullopt;
    if (size >= limit && found >= size + o_.max_non_split_rounding.value) return std::nullopt;
    return fitting[k];
  }

  DeviceAddress use(Place p, std::int64_t size, std::int64_t requested) {
    const std::int64_t rest = p.piece().size - size;
    const bool split = p.segment->small || o_.expandable_segments
                           ? rest >= 512
                           : size < o_.max_split_size.value && rest > (1 << 20);
    if (split) {
      Piece tail{p.piece().address + static_cast<DeviceAddress>(size), rest, kFree};
      tail.free_since = searches_[p.segment->small];
      p.piece().size = size;
      p.segment->pieces.insert(p.segment->pieces.begin() + static_cast<std::ptrdiff_t>(p.index) + 1,
                               tail);
    }
    p.piece().state = kUsed;
    p.piece().requested = requested;
    return p.piece().address;
  }

  /// Joins piece `index` with neighbours of its own state (free or unmapped).
  static std::size_t join(Segment& s, std::size_t index) {
    auto& v = s.pieces;
    const State state = v[index].state;
    if (index + 1 < v.size() && v[index + 1].state == state) {
      v[index].size += v[index + 1].size;
      v.erase(v.begin() + static_cast<std::ptrdiff_t>(index) + 1);
    }
    if (index > 0 && v[index - 1].state == state) {
      v[index].size += v[index - 1].size;
      v[index].address = v[index - 1].address;
      v.erase(v.begin() + static_cast<std::ptrdiff_t>(index) - 1);
      --index;
    }
    return index;
  }

  void make_free(Place p) {
    p.piece().state = kFree;
    p.piece().free_since = searches_[p.segment->small];
    join(*p.segment, p.index);
  }

  void one_event_done(DeviceAddress a) {
    const Place p = find([a](const Piece& x) { return x.state == kPending && x.address == a; });
    if (--p.piece().events == 0) make_free(p);
  }

  void tell(SegmentEvent::Kind kind, DeviceAddress address, std::int64_t bytes,
            std::uint32_t stream) {
    listener_.on_segment({kind, address, Bytes(bytes), stream});
  }

  void release(std::list<Segment>::iterator s) {
    const Segment gone = *s;
    segments_.erase(s);
    source_.release(gone.base, Bytes(gone.pieces[0].size));
    tell(SegmentEvent::Kind::kRelease, gone.base, gone.pieces[0].size, gone.stream);
  }

  std::optional<Place> grow(std::int64_t size, bool small, std::uint32_t stream) {
    const std::int64_t segment = segment_bytes_for(Bytes(size), o_).value;
    if (totals().reserved + segment > allowed_) return std::nullopt;
    if (o_.expandable_segments) return expand(size, small, stream);
    const DeviceAddress a = source_.allocate(Bytes(segment), stream);
    if (a == 0) return std::nullopt;
    segments_.push_back({a, stream, small, false, {Piece{a, segment, kFree}}});
    tell(SegmentEvent::Kind::kAllocate, a, segment, stream);
    return Place{std::prev(segments_.end()), 0};
  }

  bool release_oversize(std::int64_t size, bool small, std::uint32_t stream) {
    if (o_.max_split_size == kNoByteLimit || o_.expandable_segments) return false;
    const std::int64_t wanted = std::max(size, o_.max_split_size.value);
    auto places = free_places(small, stream);
    for (const Place& p : places) {
      if (p.piece().size >= wanted) {
        release(p.segment);
        return true;
      }
    }
    std::int64_t released = 0;
    while (released < wanted && !places.empty() &&
           places.back().piece().size >= o_.max_split_size.value) {
      released += places.back().piece().size;
      release(places.back().segment);
      places.pop_back();
    }
    return released >= wanted;
  }

  void collect_garbage() {
    const auto threshold =
        static_cast<std::int64_t>(o_.garbage_collection_threshold * static_cast<double>(allowed_));
    const std::int64_t target = totals().reserved - threshold;
    if (target <= 0) return;
    std::int64_t reclaimed = 0;
    for (bool freed = true; freed && reclaimed < target;) {
      freed = false;
      std::vector<DeviceAddress> whole;
      std::int64_t age = 0;
      for (const DeviceAddress a : free_addresses(false)) {
        const Place p = find_free(a);
        if (p.segment->expandable || p.segment->pieces.size() > 1) continue;
        whole.push_back(a);
        age += searches_[false] - p.piece().free_since;
      }
      for (const DeviceAddress a : whole) {
        const Place p = find_free(a);
        const double average = static_cast<double>(age) / static_cast<double>(whole.size());
        if (static_cast<double>(searches_[false] - p.piece().free_since) < average) continue;
        freed = true;
        reclaimed += p.piece().size;
        release(p.segment);
      }
    }
  }

  std::int64_t page(bool small) const { return small ? 2 << 20 : o_.large_segment_size.value; }

  std::optional<Place> expand(std::int64_t size, bool small, std::uint32_t stream) {
    auto start = expandable_start(size, small, stream);
    if (!start) return std::nullopt;
    std::int64_t have = start->piece().state == kFree ? start->piece().size : 0;
    while (have < size) {
      const std::size_t at = start->piece().state == kFree ? start->index + 1 : start->index;
      const auto joined = map_pages({start->segment, at}, size - have);
      if (!joined) return std::nullopt;
      start->index = *joined;
      have = start->piece().size;
    }
    return start;
  }

  std::optional<Place> expandable_start(std::int64_t size, bool small, std::uint32_t stream) {
    std::map<DeviceAddress, Place> unmapped;
    for (auto s = segments_.begin(); s != segments_.end(); ++s) {
      for (std::size_t k = 0; k < s->pieces.size(); ++k) {
        if (s->small == small && s->stream == stream && s->pieces[k].state == kUnmapped) {
          unmapped.insert({s->pieces[k].address, Place{s, k}});
        }
      }
    }
    for (auto& [address, p] : unmapped) {
      if (p.index > 0 && p.segment->pieces[p.index - 1].state == kFree) --p.index;
      std::int64_t room = 0;
      for (std::size_t k = p.index; k < p.segment->pieces.size(); ++k) {
        if (p.segment->pieces[k].state != kFree && p.segment->pieces[k].state != kUnmapped) break;
        room += p.segment->pieces[k].size;
      }
      if (room >= size) return p;
    }
    const std::int64_t unit = page(small);
    const std::int64_t capacity = source_.capacity().value;
    const std::int64_t span = (capacity * 9 / 8 + unit - 1) / unit * unit;
    if (span < size) return std::nullopt;
    const DeviceAddress base = source_.reserve(Bytes(span));
    if (base == 0) return std::nullopt;
    segments_.push_back({base, stream, small, true, {Piece{base, span, kUnmapped}}});
    return Place{std::prev(segments_.end()), 0};
  }

  /// Index of the free piece that the new pages belong to.
  std::optional<std::size_t> map_pages(Place p, std::int64_t size) {
    const std::int64_t unit = page(p.segment->small);
    const std::int64_t bytes = (std::min(size, p.piece().size) + unit - 1) / unit * unit;
    const DeviceAddress a = p.piece().address;
    if (!source_.map(a, Bytes(bytes))) return std::nullopt;
    cut(p, bytes);
    p.piece().state = kFree;
    p.piece().free_since = searches_[p.segment->small];
    tell(SegmentEvent::Kind::kMap, a, bytes, p.segment->stream);
    return join(*p.segment, p.index);
  }

  /// Cuts a piece into two of the same state.
  static void cut(Place p, std::int64_t front) {
    if (front == p.piece().size) return;
    Piece tail = p.piece();
    tail.address += static_cast<DeviceAddress>(front);
    tail.size -= front;
    p.piece().size = front;
    p.segment->pieces.insert(p.segment->pieces.begin() + static_cast<std::ptrdiff_t>(p.index) + 1,
                             tail);
  }

  void unmap_pages(Place p) {
    const std::int64_t unit = page(p.segment->small);
    const auto offset = static_cast<std::int64_t>(p.piece().address - p.segment->base);
    const std::int64_t low = (offset + unit - 1) / unit * unit;
    const std::int64_t high = (offset + p.piece().size) / unit * unit;
    if (low >= high) return;
    if (low > offset) {
      cut(p, low - offset);
      ++p.index;
    }
    cut(p, high - low);
    const DeviceAddress a = p.piece().address;
    source_.unmap(a, Bytes(high - low));
    p.piece().state = kUnmapped;
    tell(SegmentEvent::Kind::kUnmap, a, high - low, p.segment->stream);
    join(*p.segment, p.index);
    if (p.segment->pieces.size() == 1) {
      source_.unreserve(p.segment->base, Bytes(p.segment->pieces[0].size));
      segments_.erase(p.segment);
    }
  }

  AllocatorOptions o_;
  SegmentSource& source_;
  StreamProgress& progress_;
  SegmentListener& listener_;
  std::int64_t allowed_ = INT64_MAX / 2;
  std::list<Segment> segments_;
  std::map<std::uint32_t, std::deque<std::pair<StreamProgress::Event, DeviceAddress>>> events_;
  std::int64_t searches_[2] = {0, 0};
};

}  // namespace foreshard::fixture
