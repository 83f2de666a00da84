#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "schedules/text.h"
#include "schedules/validate_internal.h"

namespace foreshard::validate_internal {
namespace {

/// Instructions of a program that are collectives of one group, in host order.
std::vector<std::uint32_t> collectives_of(const RankProgram& p, GroupId group) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& n = p.instructions[i];
    if (n.kind == InstructionKind::kCollective && p.collectives[n.id].group == group)
      out.push_back(i);
  }
  return out;
}

bool match(const Collective& a, const Collective& b) {
  return a.kind == b.kind && a.op == b.op && a.dtype == b.dtype && a.bytes == b.bytes &&
         a.root == b.root && a.launched_together == b.launched_together;
}

/// Pairs of different programs that share a communicator of `group`.
std::set<std::pair<std::uint32_t, std::uint32_t>> sharing_programs(const Schedule& s,
                                                                   const Group& group) {
  std::map<std::int64_t, std::set<std::uint32_t>> members;
  for (std::int64_t r = 0; r < s.world; ++r)
    members[group.first_of(r)].insert(
        s.program_of_rank[s.program_of_rank.size() == 1 ? 0 : static_cast<std::size_t>(r)]);
  std::set<std::pair<std::uint32_t, std::uint32_t>> pairs;
  for (const auto& [first, programs] : members)
    for (const std::uint32_t p : programs)
      if (p != *programs.begin()) pairs.insert({*programs.begin(), p});
  return pairs;
}

void compare_programs(const Schedule& s, GroupId group, std::uint32_t a, std::uint32_t b,
                      Findings& findings) {
  const RankProgram &pa = s.programs[a], &pb = s.programs[b];
  const auto ca = collectives_of(pa, group), cb = collectives_of(pb, group);
  for (std::size_t i = 0; i < std::max(ca.size(), cb.size()); ++i) {
    if (i < ca.size() && i < cb.size() &&
        match(pa.collectives[pa.instructions[ca[i]].id], pb.collectives[pb.instructions[cb[i]].id]))
      continue;
    std::vector<ScheduleFinding::Place> places;
    if (i < ca.size()) places.push_back({a, ca[i]});
    if (i < cb.size()) places.push_back({b, cb[i]});
    findings.add(
        ScheduleFault::kCollectiveOrder,
        fmt::format("collective number {} of group \"{}\" differs between programs {} and {}", i,
                    s.groups[group.value].name, a, b),
        std::move(places));
    return;
  }
}

/// A device operation waiting in a stream.
struct Item {
  enum class Kind : std::uint8_t { kWork, kRecord, kWait, kCollective } kind = Kind::kWork;
  std::uint32_t serial =
      0;  ///< Number of the record; UINT32_MAX for a wait that nothing satisfies.
  std::uint32_t instruction = 0;
};

struct StreamState {
  std::vector<Item> queue;
  std::size_t head = 0;
  bool arrived = false;  ///< The head is a collective that has been announced.
  bool empty() const { return head == queue.size(); }
};

struct RankState {
  std::uint32_t program = 0, next = 0;
  std::vector<StreamState> streams;
  std::vector<std::uint32_t> last_record;  ///< Of each event; UINT32_MAX before the first.
  std::vector<bool> done;                  ///< By record serial.
  std::vector<std::uint32_t> issued;       ///< Collectives reached on the device, by group.
};

/// Runs ranks step by step; collectives meet. Time has no part in it.
class ProgressChecker {
 public:
  ProgressChecker(const Schedule& s, std::vector<std::int64_t> ranks)
      : s_(s), ranks_(std::move(ranks)) {
    for (const std::int64_t r : ranks_) {
      RankState state;
      state.program =
          s.program_of_rank[s.program_of_rank.size() == 1 ? 0 : static_cast<std::size_t>(r)];
      const RankProgram& p = s.programs[state.program];
      state.streams.resize(p.streams.size());
      state.last_record.assign(p.events, UINT32_MAX);
      state.issued.assign(s.groups.size(), 0);
      states_.push_back(std::move(state));
    }
    for (std::uint32_t g = 0; g < s.groups.size(); ++g)
      for (const std::int64_t r : ranks_) ++members_[{g, s.groups[g].first_of(r)}];
  }

  void run(Findings& findings) {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t r = 0; r < states_.size(); ++r) moved = advance(r) || moved;
    }
    report(findings);
  }

 private:
  bool advance(std::size_t r) {
    bool moved = false, again = true;
    while (again) {
      again = issue(states_[r]);
      for (std::size_t s = 0; s < states_[r].streams.size(); ++s) again = drain(r, s) || again;
      moved = moved || again;
    }
    return moved;
  }

  /// Host thread: issues until it has to wait.
  bool issue(RankState& state) {
    const RankProgram& p = s_.programs[state.program];
    bool moved = false;
    for (; state.next < p.instructions.size(); ++state.next, moved = true) {
      const Instruction& i = p.instructions[state.next];
      using K = InstructionKind;
      if (i.kind == K::kSyncEvent && !is_done(state, state.last_record[i.id])) return moved;
      if (i.kind == K::kSyncStream && !state.streams[i.stream].empty()) return moved;
      if (i.kind == K::kSyncDevice && !all_empty(state)) return moved;
      if (i.kind == K::kRecordEvent) {
        state.last_record[i.id] = static_cast<std::uint32_t>(state.done.size());
        state.done.push_back(false);
        push(state, i.stream, {Item::Kind::kRecord, state.last_record[i.id], state.next});
      } else if (i.kind == K::kWaitEvent) {
        push(state, i.stream, {Item::Kind::kWait, state.last_record[i.id], state.next});
      } else if (is_device_work(i)) {
        push(state, stream_of(p, i),
             {i.kind == K::kCollective ? Item::Kind::kCollective : Item::Kind::kWork, 0,
              state.next});
      }
    }
    return moved;
  }

  static void push(RankState& state, StreamIndex s, Item item) {
    state.streams[s].queue.push_back(item);
  }
  /// Waiting for an event that was never recorded returns at once, as on a device; check_ordering()
  /// reports it.
  static bool is_done(const RankState& state, std::uint32_t serial) {
    return serial == UINT32_MAX || state.done[serial];
  }
  static bool all_empty(const RankState& state) {
    return std::all_of(state.streams.begin(), state.streams.end(),
                       [](const StreamState& s) { return s.empty(); });
  }

  bool drain(std::size_t r, std::size_t s) {
    RankState& state = states_[r];
    StreamState& stream = state.streams[s];
    bool moved = false;
    while (!stream.empty()) {
      const Item& item = stream.queue[stream.head];
      if (item.kind == Item::Kind::kWait && !is_done(state, item.serial)) break;
      if (item.kind == Item::Kind::kCollective && !meet(r, stream, item)) break;
      if (item.kind == Item::Kind::kRecord) state.done[item.serial] = true;
      ++stream.head;
      stream.arrived = false;
      moved = true;
    }
    return moved;
  }

  /// True once every member has reached this collective.
  bool meet(std::size_t r, StreamState& stream, const Item& item) {
    RankState& state = states_[r];
    const RankProgram& p = s_.programs[state.program];
    const std::uint32_t g = p.collectives[p.instructions[item.instruction].id].group.value;
    const std::pair<std::uint32_t, std::int64_t> communicator{g, s_.groups[g].first_of(ranks_[r])};
    if (!stream.arrived) {
      stream.arrived = true;
      ++arrivals_[communicator][state.issued[g]++];
    }
    return arrivals_[communicator][state.issued[g] - 1] >= members_[communicator];
  }

  void report(Findings& findings) {
    std::vector<ScheduleFinding::Place> places;
    std::string who;
    for (std::size_t r = 0; r < states_.size(); ++r) {
      const RankState& state = states_[r];
      const auto size = s_.programs[state.program].instructions.size();
      bool stuck = state.next < size;
      if (stuck && places.size() < 12) places.push_back({state.program, state.next});
      for (const StreamState& stream : state.streams) {
        if (stream.empty()) continue;
        stuck = true;
        if (places.size() < 12)
          places.push_back({state.program, stream.queue[stream.head].instruction});
      }
      if (stuck && who.size() < 60) who += fmt::format("{}{}", who.empty() ? "" : ", ", ranks_[r]);
    }
    if (!places.empty())
      findings.add(ScheduleFault::kDeadlock,
                   fmt::format("rank {} cannot go on: each of these waits for another", who),
                   std::move(places));
  }

  const Schedule& s_;
  std::vector<std::int64_t> ranks_;
  std::vector<RankState> states_;
  std::map<std::pair<std::uint32_t, std::int64_t>, int> members_;
  std::map<std::pair<std::uint32_t, std::int64_t>, std::map<std::uint32_t, int>> arrivals_;
};

}  // namespace

void check_collective_order(const Schedule& s, Findings& findings) {
  if (s.programs.size() < 2) return;
  for (std::uint32_t g = 0; g < s.groups.size() && !findings.full(); ++g)
    for (const auto& [a, b] : sharing_programs(s, s.groups[g]))
      compare_programs(s, GroupId(g), a, b, findings);
}

void check_progress(const Schedule& s, Findings& findings) {
  // Ranks of one program behave alike, so one of each is enough where all groups hold all programs;
  // small worlds are run whole.
  constexpr std::size_t kMostWork = 20'000'000;
  std::size_t longest = 1;
  for (const RankProgram& p : s.programs) longest = std::max(longest, p.instructions.size());
  std::vector<std::int64_t> ranks;
  const bool whole =
      s.programs.size() > 1 && static_cast<std::size_t>(s.world) <= kMostWork / longest;
  std::set<std::uint32_t> seen;
  for (std::int64_t r = 0; r < s.world; ++r) {
    const std::uint32_t p =
        s.program_of_rank[s.program_of_rank.size() == 1 ? 0 : static_cast<std::size_t>(r)];
    if (whole || seen.insert(p).second) ranks.push_back(r);
    if (!whole && seen.size() == s.programs.size()) break;
  }
  ProgressChecker(s, std::move(ranks)).run(findings);
}

}  // namespace foreshard::validate_internal
