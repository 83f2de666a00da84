#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <utility>

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

/// For each stream, the last of its accesses to memory that went back to a pool.
struct Returned {
  Clock position{};
  std::array<std::uint32_t, kMostStreams> instruction{};
};

/// What became of a buffer since it was claimed.
struct History {
  std::vector<Access> writes, reads;
  std::uint32_t recorded = 0;  ///< Streams of record_stream, one bit each.
  /// What its memory may have been before, until its first access; null without any.
  std::shared_ptr<const Returned> before;
};

/// Happens-before over streams and host by vector clocks, in one pass over the host program.
///
/// Memory that is returned serves the next claim of its pool at once, whatever still runs; only
/// streams named with record_stream are waited for. Which claim gets which memory is the
/// allocator's choice, so the first access to a buffer must follow every access to what the pool
/// was given before it was claimed.
class OrderingChecker {
 public:
  OrderingChecker(const Schedule& schedule, std::uint32_t program, Findings& findings)
      : p_(schedule.programs[program]),
        program_(program),
        findings_(findings),
        buffers_(p_.buffers.size()),
        events_(p_.events),
        recorded_(p_.events, false),
        pools_(p_.streams.size()) {}

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
        if (of_device(i.id)) buffers_[i.id].before = pools_[p_.buffers[i.id].pool];
        break;
      case K::kFree:
        if (of_device(i.id)) give_back(i.id);
        break;
      case K::kRecordStream:
        buffers_[i.id].recorded |= std::uint32_t{1} << i.stream;
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

  bool of_device(std::uint32_t buffer) const {
    return p_.buffers[buffer].space == MemorySpace::kDevice;
  }

  /// Whether memory of this access is only served again when it is over: its stream was recorded,
  /// or one that was waits for it.
  bool waited_for(const History& h, const Access& a) const {
    for (std::size_t s = 0; s < p_.streams.size(); ++s) {
      if ((h.recorded >> s & 1) == 0) continue;
      if (s == a.stream || a.position <= streams_[s][a.stream]) return true;
    }
    return false;
  }

  void give_back(std::uint32_t buffer) {
    History& h = buffers_[buffer];
    const StreamIndex owner = p_.buffers[buffer].pool;
    std::shared_ptr<Returned>& pool = pools_[owner];
    std::shared_ptr<Returned> now;  // Claims hold what the pool was when they were made.
    const auto copy_of = [](const std::shared_ptr<Returned>& r) {
      return r ? std::make_shared<Returned>(*r) : std::make_shared<Returned>();
    };
    for (const std::vector<Access>* list : {&h.writes, &h.reads}) {
      for (const Access& a : *list) {
        if (a.position == 0 || a.position <= host_[a.stream] || waited_for(h, a)) continue;
        if (!now) now = pool.use_count() == 1 ? pool : copy_of(pool);
        if (a.position <= now->position[a.stream]) continue;
        now->position[a.stream] = a.position;
        now->instruction[a.stream] = a.instruction;
      }
    }
    if (now) pool = std::move(now);
  }

  /// The first access to a buffer.
  void check_reuse(const Tensor& t, const Returned& before, const Access& now) {
    for (std::size_t s = 0; s < p_.streams.size(); ++s) {
      if (s == now.stream || before.position[s] <= streams_[now.stream][s]) continue;
      const std::uint32_t earlier = before.instruction[s];
      if (!reported_.insert(earlier).second) continue;
      findings_.add(
          ScheduleFault::kUnordered,
          fmt::format("{} may get memory that was returned while stream {} still uses it, and "
                      "stream {} does not wait for that",
                      describe_buffer(p_, t.buffer), p_.streams[s].name,
                      p_.streams[now.stream].name),
          {{program_, earlier}, {program_, now.instruction}});
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
    if (const auto before = std::exchange(h.before, nullptr)) check_reuse(t, *before, now);
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
  std::vector<std::shared_ptr<Returned>> pools_;  ///< By owner; null: nothing to wait for.
  std::set<std::uint32_t> reported_;  ///< Instructions that a finding of check_reuse() names.
  std::array<Clock, kMostStreams> streams_{};
  Clock host_{};
};

}  // namespace

void check_ordering(const Schedule& schedule, std::uint32_t program, Findings& findings) {
  OrderingChecker(schedule, program, findings).run();
}

}  // namespace foreshard::validate_internal
