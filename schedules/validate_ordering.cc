#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "schedules/structure.h"
#include "schedules/text.h"
#include "schedules/validate_internal.h"

namespace foreshard::validate_internal {
namespace {

/// For each stream, how many of its operations are known to be over.
using Clock = std::array<std::uint32_t, kMostStreams>;

void join(Clock& into, const Clock& other) {
  for (std::size_t s = 0; s < into.size(); ++s) into[s] = std::max(into[s], other[s]);
}

/// One operation's use of a byte range.
struct Access {
  std::int64_t begin = 0, end = 0;
  std::uint32_t position = 0;  ///< Of the operation on its stream.
  std::uint32_t instruction = 0;
  StreamIndex stream = 0;
  bool overlaps(const Access& o) const { return begin < o.end && o.begin < end; }
  bool covers(const Access& o) const { return begin <= o.begin && o.end <= end; }
};

struct History {
  std::vector<Access> writes, reads;
};

/// Happens-before over streams and host by vector clocks, in one pass over the host program.
class OrderingChecker {
 public:
  OrderingChecker(const Schedule& schedule, std::uint32_t program, Findings& findings)
      : p_(schedule.programs[program]),
        program_(program),
        findings_(findings),
        buffers_(p_.buffers.size()),
        events_(p_.events),
        recorded_(p_.events, false) {}

  void run() {
    for (std::uint32_t at = 0; at < p_.instructions.size() && !findings_.full(); ++at) step(at);
  }

 private:
  void step(std::uint32_t at) {
    const Instruction& i = p_.instructions[at];
    using K = InstructionKind;
    switch (i.kind) {
      case K::kAlloc:
        buffers_[i.id] = {};
        break;
      case K::kRecordEvent:
        advance(i.stream);
        events_[i.id] = streams_[i.stream];
        recorded_[i.id] = true;
        break;
      case K::kWaitEvent:
        if (require_recorded(i.id, at)) join(streams_[i.stream], events_[i.id]);
        break;
      case K::kSyncEvent:
        if (require_recorded(i.id, at)) join(host_, events_[i.id]);
        break;
      case K::kSyncStream:
        join(host_, streams_[i.stream]);
        break;
      case K::kSyncDevice:
        for (const Clock& c : streams_) join(host_, c);
        break;
      case K::kLaunch:
      case K::kCollective:
      case K::kCopy:
        device_work(i, at);
        break;
      default:
        break;
    }
  }

  /// Starts the next operation on a stream; it follows all that the host has waited for.
  void advance(StreamIndex s) {
    join(streams_[s], host_);
    ++streams_[s][s];
  }

  bool require_recorded(std::uint32_t e, std::uint32_t at) {
    if (recorded_[e]) return true;
    std::vector<ScheduleFinding::Place> places{{program_, at}};
    for (std::uint32_t later = at + 1; later < p_.instructions.size(); ++later) {
      const Instruction& i = p_.instructions[later];
      if (i.kind != InstructionKind::kRecordEvent || i.id != e) continue;
      places.push_back({program_, later});
      break;
    }
    findings_.add(ScheduleFault::kEventNotRecorded,
                  fmt::format("event {} is waited for but {}", e,
                              places.size() == 1 ? "never recorded" : "recorded only afterwards"),
                  std::move(places));
    recorded_[e] = true;  // Report each event once.
    return false;
  }

  void device_work(const Instruction& i, std::uint32_t at) {
    const StreamIndex s = stream_of(p_, i);
    advance(s);
    for_each_access(p_, i,
                    [&](TensorId t, bool write) { access(p_.tensors[t.value], write, s, at); });
    if (i.kind == InstructionKind::kCopy && p_.copies[i.id].blocks_host) join(host_, streams_[s]);
  }

  static Access range_of(const Tensor& t) {
    std::int64_t last = 0;
    for (int d = 0; d < t.rank; ++d) last += (t.shape[d] - 1) * t.stride[d];
    return {t.offset, t.offset + (last + 1) * size_of(t.dtype), 0, 0, 0};
  }

  void access(const Tensor& t, bool write, StreamIndex s, std::uint32_t at) {
    if (t.numel() == 0) return;
    Access now = range_of(t);
    now.position = streams_[s][s];
    now.instruction = at;
    now.stream = s;
    History& h = buffers_[t.buffer.value];
    if (!write) check_written(t, h, now);
    check_ordered(t, h.writes, now, write ? "written twice" : "read");
    if (write) check_ordered(t, h.reads, now, "overwritten");
    if (write) {
      std::erase_if(h.reads, [&](const Access& a) { return now.covers(a); });
      remember(h.writes, now);
    } else {
      remember(h.reads, now);
    }
  }

  static bool is_gathered(BufferCategory c) {
    return c == BufferCategory::kGatherOutput || c == BufferCategory::kUnshardedParameter;
  }

  static bool touched(const std::vector<Access>& writes, const Access& now) {
    return std::any_of(writes.begin(), writes.end(),
                       [&](const Access& w) { return w.overlaps(now); });
  }
  /// A rank's own shard may already stand in the buffer: gathered means all of it.
  static bool covered(std::vector<Access> writes, const Access& now) {
    std::sort(writes.begin(), writes.end(),
              [](const Access& a, const Access& b) { return a.begin < b.begin; });
    std::int64_t reached = now.begin;
    for (const Access& w : writes)
      if (w.begin <= reached) reached = std::max(reached, w.end);
    return reached >= now.end;
  }

  void check_written(const Tensor& t, History& h, const Access& now) {
    const bool gathered = is_gathered(p_.buffers[t.buffer.value].category);
    if (gathered ? covered(h.writes, now) : touched(h.writes, now)) return;
    findings_.add(gathered ? ScheduleFault::kUseBeforeGather : ScheduleFault::kReadBeforeWrite,
                  describe_buffer(p_, t.buffer) + (gathered ? " is used before it is gathered"
                                                            : " is read before it is written"),
                  {{program_, now.instruction}});
    remember(h.writes, now);  // Report each buffer once.
  }

  void check_ordered(const Tensor& t, std::vector<Access>& earlier, const Access& now,
                     std::string_view how) {
    for (Access& a : earlier) {
      if (a.stream == now.stream || !a.overlaps(now)) continue;
      if (a.position <= streams_[now.stream][a.stream]) continue;
      const bool gathered = is_gathered(p_.buffers[t.buffer.value].category) && how == "read";
      findings_.add(gathered ? ScheduleFault::kUseBeforeGather : ScheduleFault::kUnordered,
                    fmt::format("{} is {} on stream {} without waiting for stream {}",
                                describe_buffer(p_, t.buffer), how, p_.streams[now.stream].name,
                                p_.streams[a.stream].name),
                    {{program_, a.instruction}, {program_, now.instruction}});
      a.position = 0;  // Report each pair once.
    }
  }

  /// Adds an access; those it covers on the same stream are implied by it. Long lists collapse per
  /// stream.
  static void remember(std::vector<Access>& list, const Access& now) {
    std::erase_if(list, [&](const Access& a) { return a.stream == now.stream && now.covers(a); });
    list.push_back(now);
    if (list.size() <= 64) return;
    std::vector<Access> merged;
    for (const Access& a : list) {
      const auto same = std::find_if(merged.begin(), merged.end(),
                                     [&](const Access& m) { return m.stream == a.stream; });
      if (same == merged.end()) {
        merged.push_back(a);
        continue;
      }
      const std::int64_t begin = std::min(same->begin, a.begin), end = std::max(same->end, a.end);
      if (a.position > same->position) *same = a;
      same->begin = begin;
      same->end = end;
    }
    list = std::move(merged);
  }

  const RankProgram& p_;
  std::uint32_t program_;
  Findings& findings_;
  std::vector<History> buffers_;
  std::vector<Clock> events_;
  std::vector<bool> recorded_;
  std::array<Clock, kMostStreams> streams_{};
  Clock host_{};
};

}  // namespace

void check_ordering(const Schedule& schedule, std::uint32_t program, Findings& findings) {
  OrderingChecker(schedule, program, findings).run();
}

}  // namespace foreshard::validate_internal
