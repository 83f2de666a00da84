#include "exec/access_check.h"

#include <algorithm>

#include <fmt/format.h>

namespace foreshard {

AccessCheck::AccessCheck(std::size_t streams, std::uint32_t events)
    : streams_(streams), clocks_(streams, Clock(streams, 0)), host_(streams, 0), events_(events) {}

void AccessCheck::join(Clock& into, const Clock& other) {
  for (std::size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

void AccessCheck::split_at(std::uint64_t address) {
  auto it = cells_.upper_bound(address);
  if (it == cells_.begin()) return;
  --it;
  if (it->first == address || it->second.end <= address) return;
  Cell tail = it->second;
  it->second.end = address;
  cells_.emplace(address, std::move(tail));
}

template <typename F>
void AccessCheck::for_cells(Range range, F f) {
  if (range.begin >= range.end) return;
  split_at(range.begin);
  split_at(range.end);
  const std::vector<Touch> never(streams_);
  std::uint64_t at = range.begin;
  auto it = cells_.lower_bound(range.begin);
  while (at < range.end) {
    if (it == cells_.end() || it->first > at) {
      const std::uint64_t end = it == cells_.end() ? range.end : std::min(range.end, it->first);
      it = cells_.emplace_hint(it, at, Cell{end, false, never, never});
    }
    f(it->second);
    at = it->second.end;
    ++it;
  }
}

void AccessCheck::allocate(Range range) {
  if (range.begin >= range.end) return;
  Cell whole{range.end, false, std::vector<Touch>(streams_), std::vector<Touch>(streams_)};
  const auto newest = [](std::vector<Touch>& into, const std::vector<Touch>& from) {
    for (std::size_t s = 0; s < into.size(); ++s) {
      if (from[s].time > into[s].time) into[s] = from[s];
    }
  };
  for_cells(range, [&](Cell& c) {
    newest(whole.reads, c.reads);
    newest(whole.writes, c.writes);
  });
  cells_.erase(cells_.lower_bound(range.begin), cells_.lower_bound(range.end));
  cells_.emplace(range.begin, std::move(whole));
}

void AccessCheck::forget(Range range, const std::vector<StreamIndex>& streams) {
  // What the stream waited for before is done when it is: an access of another stream that it is
  // ordered after counts too.
  const auto settle = [&](std::vector<Touch>& touches) {
    for (std::size_t t = 0; t < touches.size(); ++t) {
      for (const StreamIndex s : streams) {
        if (static_cast<std::size_t>(s) == t || touches[t].time <= clocks_[s][t])
          touches[t] = Touch{};
      }
    }
  };
  for_cells(range, [&](Cell& c) {
    settle(c.reads);
    settle(c.writes);
  });
}

void AccessCheck::begin_work(StreamIndex stream, std::uint32_t instruction) {
  current_ = stream;
  instruction_ = instruction;
  join(clocks_[stream], host_);
  ++clocks_[stream][stream];
}

std::string AccessCheck::conflict(const std::vector<Touch>& touches, const char* mine,
                                  const char* theirs) const {
  for (std::size_t s = 0; s < touches.size(); ++s) {
    if (touches[s].time <= clocks_[current_][s]) continue;
    return fmt::format(
        "{} bytes that stream {} {} (instruction {}), and stream {} never waited for it", mine, s,
        theirs, touches[s].instruction, static_cast<int>(current_));
  }
  return {};
}

std::string AccessCheck::read(Range range) {
  std::string problem;
  for_cells(range, [&](Cell& c) {
    if (problem.empty()) problem = conflict(c.writes, "reads", "writes");
    if (problem.empty() && !c.written)
      problem = "reads bytes that nothing wrote since they were allocated";
    c.reads[current_] = {clocks_[current_][current_], instruction_};
  });
  return problem;
}

std::string AccessCheck::write(Range range) {
  std::string problem;
  for_cells(range, [&](Cell& c) {
    if (problem.empty()) problem = conflict(c.writes, "writes", "writes");
    if (problem.empty()) problem = conflict(c.reads, "writes", "reads");
    c.writes[current_] = {clocks_[current_][current_], instruction_};
    c.written = true;
  });
  return problem;
}

void AccessCheck::record_event(EventId event, StreamIndex stream) {
  join(clocks_[stream], host_);
  events_[event.value] = clocks_[stream];
}

void AccessCheck::wait_event(EventId event, StreamIndex stream) {
  join(clocks_[stream], events_[event.value]);
}

void AccessCheck::sync_event(EventId event) { join(host_, events_[event.value]); }

void AccessCheck::sync_stream(StreamIndex stream) { join(host_, clocks_[stream]); }

void AccessCheck::sync_device() {
  for (const Clock& c : clocks_) join(host_, c);
}

}  // namespace foreshard
