#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "exec/run_control.h"
#include "exec/transport/call_checks.h"
#include "exec/transport/reduce.h"
#include "exec/transport/transport.h"

namespace foreshard {
namespace {

/// One collective in flight: its members meet here, work on each other's buffers and leave
/// together.
struct Meeting {
  explicit Meeting(std::int64_t size) : members(static_cast<std::size_t>(size)) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::optional<CollectiveCall>>
      members;  ///< Copies: a member that failed may be gone. Its buffers are not.
  std::size_t arrived = 0;
  std::array<std::size_t, 2> passed{};  ///< Members past the middle and at the end.
  Time ready;                           ///< Latest of the members.
  Time duration;                        ///< Longest of the members.
  bool started = false;
  CollectiveStart start;
  std::vector<std::byte> scratch;  ///< All-reduce: the result before it is copied out.
};

/// The collectives of one communicator start one after the other.
struct Lane {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t next = 0;  ///< Sequence number of the one that may start.
  Time free_at;            ///< Nominal end of the one before.
};

/// Group, first rank, stride; channel (0, or direction of a send); number of the call.
using MeetingKey =
    std::tuple<std::uint32_t, std::int64_t, std::int64_t, std::int64_t, std::uint64_t>;
using LaneKey = std::tuple<std::uint32_t, std::int64_t, std::int64_t>;

class SharedMemoryTransport final : public Transport {
 public:
  explicit SharedMemoryTransport(RunControl& control) : control_(control) {}

  CollectiveStart collective(const CollectiveCall& call, Time ready) override {
    if (call.kind == CollectiveKind::kSendReceive) return send_receive(call, ready);
    check_shapes(call);
    const MeetingKey key = key_of(call, 0, call.sequence);
    const std::shared_ptr<Meeting> meeting = arrive(key, call.size, call.index, call, ready);
    wait_for_all(*meeting, call);
    move_data(*meeting, call);
    leave(*meeting, key);
    return meeting->start;
  }

 private:
  static MeetingKey key_of(const CollectiveCall& c, std::int64_t channel, std::uint64_t sequence) {
    return {c.group.value, c.first_rank, c.stride, channel, sequence};
  }

  std::shared_ptr<Meeting> arrive(const MeetingKey& key, std::int64_t size, std::int64_t index,
                                  const CollectiveCall& call, Time ready) {
    std::shared_ptr<Meeting> meeting;
    {
      const std::scoped_lock lock(mutex_);
      std::shared_ptr<Meeting>& slot = meetings_[key];
      if (!slot) slot = std::make_shared<Meeting>(size);
      meeting = slot;
    }
    bool last = false;
    {
      const std::scoped_lock lock(meeting->mutex);
      std::optional<CollectiveCall>& place = meeting->members[static_cast<std::size_t>(index)];
      if (place) throw InternalError("two calls of one rank meet: " + describe(call));
      place = call;
      meeting->ready = std::max(meeting->ready, ready);
      meeting->duration = std::max(meeting->duration, call.duration);
      last = ++meeting->arrived == meeting->members.size();
    }
    if (last) start(*meeting, call);
    return meeting;
  }

  /// Called by the member that arrived last: lets the meeting begin when its communicator's turn
  /// comes.
  void start(Meeting& m, const CollectiveCall& call) {
    CollectiveStart start{m.ready, std::chrono::steady_clock::now()};
    if (call.kind != CollectiveKind::kSendReceive) {
      check_agreement(m.members);
      start = take_turn(lane_of(call), m, call);
    }
    const std::scoped_lock lock(m.mutex);
    m.start = start;
    m.started = true;
    m.changed.notify_all();
  }

  Lane& lane_of(const CollectiveCall& call) {
    const std::scoped_lock lock(mutex_);
    return lanes_[{call.group.value, call.first_rank, call.stride}];
  }

  CollectiveStart take_turn(Lane& lane, const Meeting& m, const CollectiveCall& call) {
    std::unique_lock lock(lane.mutex);
    if (!control_.wait(
            lock, lane.changed, [&] { return lane.next == call.sequence; }, control_.watchdog())) {
      throw RunError(fmt::format("{} waited {:.3g} s for an earlier collective of its group",
                                 describe(call), watchdog_s()));
    }
    const CollectiveStart start{std::max(m.ready, lane.free_at), std::chrono::steady_clock::now()};
    lane.free_at = start.nominal + m.duration;
    ++lane.next;
    lane.changed.notify_all();
    return start;
  }

  void wait_for_all(Meeting& m, const CollectiveCall& call) {
    std::unique_lock lock(m.mutex);
    while (!control_.wait(
        lock, m.changed, [&] { return m.started; }, control_.watchdog())) {
      if (m.arrived < m.members.size()) throw RunError(stuck(m, call));
    }
  }

  double watchdog_s() const { return std::chrono::duration<double>(control_.watchdog()).count(); }

  std::string stuck(const Meeting& m, const CollectiveCall& call) const {
    std::string missing;
    for (std::size_t i = 0; i < m.members.size(); ++i) {
      if (m.members[i]) continue;
      const std::int64_t member =
          call.kind == CollectiveKind::kSendReceive ? call.root : static_cast<std::int64_t>(i);
      missing += fmt::format("{}rank {}", missing.empty() ? "" : ", ",
                             call.first_rank + member * call.stride);
    }
    return fmt::format("{} waited {:.3g} s for {}", describe(call), watchdog_s(), missing);
  }

  static void pass(Meeting& m, std::size_t p) {
    const std::scoped_lock lock(m.mutex);
    if (++m.passed[p] == m.members.size()) m.changed.notify_all();
  }

  /// Waits until all members have passed phase `p`.
  void barrier(Meeting& m, std::size_t p) {
    pass(m, p);
    std::unique_lock lock(m.mutex);
    control_.wait(lock, m.changed, [&] { return m.passed[p] == m.members.size(); });
  }

  void leave(Meeting& m, const MeetingKey& key) {
    barrier(m, 1);
    const std::scoped_lock lock(mutex_);
    meetings_.erase(key);
  }

  void move_data(Meeting& m, const CollectiveCall& call) {
    switch (call.kind) {
      case CollectiveKind::kAllGather:
        return all_gather(m, call);
      case CollectiveKind::kReduceScatter:
        return reduce_scatter(m, call);
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduce:
        return all_reduce(m, call);
      case CollectiveKind::kBroadcast:
        return copy(call.output.data, m.members[static_cast<std::size_t>(call.root)]->input.data,
                    call.output.bytes());
      case CollectiveKind::kAllToAll:
        return all_to_all(m, call);
      case CollectiveKind::kSendReceive:
        return;
    }
  }

  static void copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
    if (to != from && bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }

  /// Pulls every member's shard. The own place may be the input itself.
  static void all_gather(const Meeting& m, const CollectiveCall& call) {
    const std::int64_t shard = call.input.bytes();
    for (std::size_t i = 0; i < m.members.size(); ++i) {
      copy(call.output.data + static_cast<std::int64_t>(i) * shard, m.members[i]->input.data,
           shard);
    }
  }

  /// Reduces the own slice of all inputs; nobody else reads that slice, so it may be overwritten in
  /// place.
  static void reduce_scatter(const Meeting& m, const CollectiveCall& call) {
    const std::int64_t count = call.output.numel();
    reduce_slice(m, call, call.index * count, count, call.output.data);
  }

  static void reduce_slice(const Meeting& m, const CollectiveCall& call, std::int64_t first,
                           std::int64_t count, std::byte* out) {
    if (count == 0) return;
    std::vector<const std::byte*> sources;
    for (const auto& member : m.members)
      sources.push_back(member->input.data + first * size_of(call.dtype));
    reduce_elements(call.dtype, call.op, call.factor, sources, count, out);
  }

  /// Each member reduces its part of the whole into shared scratch; then those who want it copy the
  /// whole.
  void all_reduce(Meeting& m, const CollectiveCall& call) {
    const std::int64_t n = call.input.numel(), width = size_of(call.dtype);
    {
      const std::scoped_lock lock(m.mutex);
      m.scratch.resize(static_cast<std::size_t>(n * width));
    }
    const std::int64_t first = n * call.index / call.size, last = n * (call.index + 1) / call.size;
    reduce_slice(m, call, first, last - first, m.scratch.data() + first * width);
    barrier(m, 0);
    if (call.kind == CollectiveKind::kAllReduce || call.index == call.root) {
      copy(call.output.data, m.scratch.data(), n * width);
    }
  }

  static void all_to_all(const Meeting& m, const CollectiveCall& call) {
    require(call.input.data != call.output.data || call.size == 1, call,
            "an all-to-all cannot be in place");
    const std::int64_t part = call.input.bytes() / call.size;
    for (std::size_t i = 0; i < m.members.size(); ++i) {
      copy(call.output.data + static_cast<std::int64_t>(i) * part,
           m.members[i]->input.data + call.index * part, part);
    }
  }

  /// Sending and receiving halves meet separately, each in its direction: member 0 sends, member 1
  /// receives.
  CollectiveStart send_receive(const CollectiveCall& call, Time ready) {
    CollectiveStart begun{ready, std::chrono::steady_clock::now()};
    const auto join = [&](const CollectiveStart& s) {
      begun = {std::max(begun.nominal, s.nominal), std::max(begun.real, s.real)};
    };
    std::shared_ptr<Meeting> sending;
    const MeetingKey send_key = key_of(call, 1 + call.index * call.size + call.root, call.sequence);
    if (call.input.present) sending = arrive(send_key, 2, 0, call, ready);
    if (call.output.present) {
      const MeetingKey key =
          key_of(call, 1 + call.root * call.size + call.index, call.receive_sequence);
      const std::shared_ptr<Meeting> receiving = arrive(key, 2, 1, call, ready);
      wait_for_all(*receiving, call);
      const TensorView& source = receiving->members[0]->input;
      require(source.numel() == call.output.numel() && source.dtype == call.output.dtype, call,
              "sender and receiver differ in length or type");
      copy(call.output.data, source.data, source.bytes());
      pass(*receiving, 1);  // only the sender waits: two ranks that exchange must not wait for each
                            // other's sends
      join(receiving->start);
    }
    if (sending) {
      wait_for_all(*sending, call);
      leave(*sending, send_key);
      join(sending->start);
    }
    return begun;
  }

  RunControl& control_;
  std::mutex mutex_;
  std::map<MeetingKey, std::shared_ptr<Meeting>> meetings_;
  std::map<LaneKey, Lane> lanes_;
};

}  // namespace

std::unique_ptr<Transport> make_shared_memory_transport(RunControl& control) {
  return std::make_unique<SharedMemoryTransport>(control);
}

}  // namespace foreshard
