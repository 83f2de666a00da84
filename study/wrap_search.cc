#include "study/wrap_search.h"

#include <algorithm>

#include "core/error.h"

namespace foreshard {
namespace {

constexpr std::int64_t kNever = INT64_MAX / 4;

/// Times and bytes of every run of blocks [begin, begin + size).
class RunTable {
 public:
  explicit RunTable(const WrapCosts& c)
      : blocks_(static_cast<int>(c.blocks())), reshard_(c.reshard) {
    const auto n = static_cast<std::size_t>(blocks_);
    runs_.resize(n * (n + 1));
    for (int begin = 0; begin < blocks_; ++begin) {
      Run run;
      Bytes gather, reduce;
      for (int end = begin + 1; end <= blocks_; ++end) {
        const auto b = static_cast<std::size_t>(end - 1);
        run.forward += c.forward[b].value;
        run.backward += c.backward[b].value;
        gather += c.gather[b];
        reduce += c.reduce[b];
        run.gather = c.gather_time(gather).value;
        run.reduce = c.reduce_time(reduce).value;
        run.gather_bytes = gather.value;
        run.reduce_bytes = reduce.value;
        at(begin, end) = run;
      }
    }
  }

  struct Run {
    std::int64_t forward = 0, backward = 0, gather = 0, reduce = 0, gather_bytes = 0,
                 reduce_bytes = 0;
  };
  const Run& operator()(int begin, int end) const {
    return const_cast<RunTable*>(this)->at(begin, end);
  }

  /// Window of the middle one of three neighbouring groups; nullptr where the step begins or ends.
  std::int64_t window(const Run* before, const Run& group, const Run* after) const {
    const std::int64_t forward = std::max(group.forward, after != nullptr ? after->gather : 0);
    const std::int64_t again = before != nullptr && reshard_ ? before->gather : 0;
    return forward + std::max(group.backward, again + (after != nullptr ? after->reduce : 0));
  }
  /// Bytes at once in backward: this group's parameters and gradients, the prefetched group, the
  /// reduction under way.
  static std::int64_t buffers(const Run* before, const Run& group, const Run* after) {
    return 2 * group.gather_bytes + group.reduce_bytes +
           (before != nullptr ? before->gather_bytes : 0) +
           (after != nullptr ? after->reduce_bytes : 0);
  }
  int blocks() const { return blocks_; }
  bool reshard() const { return reshard_; }

 private:
  Run& at(int begin, int end) {
    return runs_[static_cast<std::size_t>(begin) * static_cast<std::size_t>(blocks_ + 1) +
                 static_cast<std::size_t>(end)];
  }
  int blocks_;
  bool reshard_;
  std::vector<Run> runs_;
};

std::int64_t begin_time(const WrapCosts& c, const RunTable::Run& first) {
  return std::max(c.embedding.value, first.gather) + first.reduce;
}
std::int64_t turn_time(const WrapCosts& c, const RunTable::Run& last) {
  return std::max(c.head.value, c.reshard ? last.gather : 0);
}

/// Shortest sums of windows. A state says: the last group is [end - last, end), the one before has
/// `before` blocks (0: none); all windows but the last group's are in the sum.
class Search {
 public:
  Search(const WrapCosts& costs, std::int64_t limit)
      : costs_(costs), runs_(costs), n_(runs_.blocks()), limit_(limit) {
    const auto side = static_cast<std::size_t>(n_ + 1);
    states_.assign(side * side * side, State{});
  }

  Grouping best() {
    for (int size = 1; size <= n_; ++size) {
      at(size, size, 0) = {begin_time(costs_, runs_(0, size)), 1, 0};
    }
    for (int end = 1; end < n_; ++end) {
      for (int last = 1; last <= end; ++last) {
        const int most = end - last;
        for (int before = most == 0 ? 0 : 1; before <= most; ++before) extend(end, last, before);
      }
    }
    return finish();
  }

 private:
  struct State {
    std::int64_t time = kNever;
    std::int32_t groups = 0;
    std::int32_t two_before = 0;  ///< Size of the group before `before`; 0: none.
    bool better_than(const State& o) const {
      return time != o.time ? time < o.time : groups < o.groups;
    }
  };

  State& at(int end, int last, int before) {
    const auto side = static_cast<std::size_t>(n_ + 1);
    return states_[(static_cast<std::size_t>(end) * side + static_cast<std::size_t>(last)) * side +
                   static_cast<std::size_t>(before)];
  }
  const RunTable::Run* run_before(int begin, int size) const {
    return size == 0 ? nullptr : &runs_(begin - size, begin);
  }

  void extend(int end, int last, int before) {
    const State state = at(end, last, before);
    if (state.time >= kNever) return;
    const RunTable::Run& group = runs_(end - last, end);
    const RunTable::Run* previous = run_before(end - last, before);
    for (int next = 1; next <= n_ - end; ++next) {
      const RunTable::Run& after = runs_(end, end + next);
      if (RunTable::buffers(previous, group, &after) > limit_) continue;
      const State candidate{state.time + runs_.window(previous, group, &after), state.groups + 1,
                            before};
      State& target = at(end + next, next, last);
      if (candidate.better_than(target)) target = candidate;
    }
  }

  Grouping finish() {
    State best;
    int best_last = 0, best_before = 0;
    for (int last = 1; last <= n_; ++last) {
      for (int before = 0; before <= n_ - last; ++before) {
        State s = at(n_, last, before);
        if (s.time >= kNever) continue;
        const RunTable::Run& group = runs_(n_ - last, n_);
        const RunTable::Run* previous = run_before(n_ - last, before);
        if (RunTable::buffers(previous, group, nullptr) > limit_) continue;
        s.time += runs_.window(previous, group, nullptr) + turn_time(costs_, group);
        if (!s.better_than(best)) continue;
        best = s;
        best_last = last;
        best_before = before;
      }
    }
    if (best.time >= kNever) return {};
    return evaluate_grouping(costs_, trace(best_last, best_before));
  }

  std::vector<std::int64_t> trace(int last, int before) {
    std::vector<std::int64_t> sizes;
    for (int end = n_; last > 0;) {
      sizes.push_back(last);
      const int earlier = before == 0 ? 0 : at(end, last, before).two_before;
      end -= last;
      last = before;
      before = earlier;
    }
    std::reverse(sizes.begin(), sizes.end());
    return sizes;
  }

  const WrapCosts& costs_;
  RunTable runs_;
  int n_;
  std::int64_t limit_;
  std::vector<State> states_;
};

}  // namespace

Grouping evaluate_grouping(const WrapCosts& c, std::vector<std::int64_t> sizes) {
  struct GroupTotals {
    Time forward, backward, gather, reduce;
    Bytes gathered, reduced;
  };
  std::vector<GroupTotals> groups;
  std::size_t block = 0;
  for (const std::int64_t size : sizes) {
    GroupTotals g;
    for (std::int64_t i = 0; i < size; ++i, ++block) {
      g.forward += c.forward.at(block);
      g.backward += c.backward.at(block);
      g.gathered += c.gather.at(block);
      g.reduced += c.reduce.at(block);
    }
    g.gather = c.gather_time(g.gathered);
    g.reduce = c.reduce_time(g.reduced);
    groups.push_back(g);
  }
  Grouping out;
  out.step = c.rest + std::max(c.embedding, groups.front().gather);
  for (std::size_t j = 0; j < groups.size(); ++j) {
    out.step += std::max(groups[j].forward, j + 1 < groups.size() ? groups[j + 1].gather : Time(0));
  }
  out.step += std::max(c.head, c.reshard ? groups.back().gather : Time(0));
  for (std::size_t j = groups.size(); j-- > 0;) {
    Time links;
    Bytes held = groups[j].gathered * 2 + groups[j].reduced;
    if (j > 0 && c.reshard) links += groups[j - 1].gather;
    if (j > 0) held += groups[j - 1].gathered;
    if (j + 1 < groups.size()) {
      links += groups[j + 1].reduce;
      held += groups[j + 1].reduced;
    }
    out.step += std::max(groups[j].backward, links);
    out.buffers = std::max(out.buffers, held);
  }
  out.step += groups.front().reduce;
  out.sizes = std::move(sizes);
  return out;
}

Grouping best_grouping(const WrapCosts& costs, Bytes limit) {
  if (costs.blocks() == 0) return {};
  return Search(costs, limit.value).best();
}

std::vector<Grouping> grouping_front(const WrapCosts& costs, Bytes limit) {
  std::vector<Grouping> front;
  for (Grouping g = best_grouping(costs, limit); !g.sizes.empty();
       g = best_grouping(costs, g.buffers - Bytes(1))) {
    if (!front.empty() && front.back().step == g.step) front.pop_back();
    front.push_back(std::move(g));
    if (front.back().buffers.value == 0) break;
  }
  return front;
}

}  // namespace foreshard
