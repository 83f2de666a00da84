#include "sim/layout.h"

#include <algorithm>
#include <map>

#include "core/error.h"

namespace foreshard::sim {
namespace {

using Signature = std::vector<std::int64_t>;

/// Numbers signatures in order of appearance.
class Numbering {
 public:
  std::uint32_t of(const Signature& s) {
    return map_.try_emplace(s, static_cast<std::uint32_t>(map_.size())).first->second;
  }
  std::size_t size() const { return map_.size(); }

 private:
  std::map<Signature, std::uint32_t> map_;
};

class LayoutBuilder {
 public:
  LayoutBuilder(const Schedule& schedule, const CostModel& cost, const SimulationOptions& options)
      : schedule_(schedule), cost_(cost), options_(options) {}

  Layout build() {
    find_used_groups();
    choose_classes();
    for (std::uint32_t c = 0; c < layout_.classes.size(); ++c) connect(c);
    return std::move(layout_);
  }

 private:
  std::uint32_t program_of(std::int64_t rank) const {
    return schedule_
        .program_of_rank[schedule_.program_of_rank.size() == 1 ? 0
                                                               : static_cast<std::size_t>(rank)];
  }

  void find_used_groups() {
    used_.assign(schedule_.groups.size(), false);
    for (const RankProgram& p : schedule_.programs) {
      for (const Collective& c : p.collectives) used_[c.group.value] = true;
    }
  }

  /// Members of the instance of `group` that holds `rank`.
  std::vector<std::int64_t> members(const Group& group, std::int64_t rank) const {
    std::vector<std::int64_t> ranks(static_cast<std::size_t>(group.size));
    const std::int64_t first = group.first_of(rank);
    for (std::int64_t i = 0; i < group.size; ++i)
      ranks[static_cast<std::size_t>(i)] = first + i * group.stride;
    return ranks;
  }

  /// How the members lie on nodes: for each member the number of the first member on the same node,
  /// and the kind of machine that it is.
  Signature placement(const std::vector<std::int64_t>& ranks) const {
    Signature s;
    std::map<std::int64_t, std::int64_t> first;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const std::int64_t node =
          first.try_emplace(cost_.node_of(ranks[i]), static_cast<std::int64_t>(i)).first->second;
      s.push_back(node + cost_.machine_of(ranks[i]) * schedule_.world);
    }
    return s;
  }

  void choose_classes() {
    color_.resize(static_cast<std::size_t>(schedule_.world));
    const bool unfolded = options_.folding == Folding::kUnfolded ||
                          (options_.folding == Folding::kAuto && !options_.variation.none());
    if (unfolded) {
      for (std::int64_t r = 0; r < schedule_.world; ++r) {
        layout_.classes.push_back({r, 1, program_of(r)});
        color_[static_cast<std::size_t>(r)] = static_cast<std::uint32_t>(r);
      }
      return;
    }
    refine();
    std::map<std::uint32_t, std::uint32_t> class_of_color;
    for (std::int64_t r = 0; r < schedule_.world; ++r) {
      std::uint32_t& color = color_[static_cast<std::size_t>(r)];
      const auto [it, added] =
          class_of_color.try_emplace(color, static_cast<std::uint32_t>(layout_.classes.size()));
      if (added) {
        layout_.classes.push_back({r, 1, program_of(r)});
      } else {
        ++layout_.classes[it->second].count;
      }
      color = it->second;
    }
  }

  void refine() {
    Numbering initial;
    for (std::int64_t r = 0; r < schedule_.world; ++r) {
      color_[static_cast<std::size_t>(r)] = initial.of({program_of(r)});
    }
    std::size_t colors = initial.size();
    for (;;) {
      std::vector<Signature> signature(color_.size());
      for (std::size_t r = 0; r < color_.size(); ++r) signature[r] = {color_[r]};
      for (std::size_t g = 0; g < used_.size(); ++g) {
        if (used_[g]) sign_instances(schedule_.groups[g], signature);
      }
      Numbering next;
      for (std::size_t r = 0; r < color_.size(); ++r) color_[r] = next.of(signature[r]);
      if (next.size() == colors) return;
      colors = next.size();
    }
  }

  void sign_instances(const Group& group, std::vector<Signature>& signature) const {
    Numbering mixtures;
    for (std::int64_t r = 0; r < schedule_.world; ++r) {
      if (group.first_of(r) != r) continue;
      const std::vector<std::int64_t> ranks = members(group, r);
      Signature mixture;
      for (const std::int64_t m : ranks) mixture.push_back(color_[static_cast<std::size_t>(m)]);
      std::sort(mixture.begin(), mixture.end());
      mixture.push_back(-1);
      const Signature where = placement(ranks);
      mixture.insert(mixture.end(), where.begin(), where.end());
      const std::uint32_t number = mixtures.of(mixture);
      for (const std::int64_t m : ranks) signature[static_cast<std::size_t>(m)].push_back(number);
    }
  }

  void connect(std::uint32_t c) {
    const RankClass& me = layout_.classes[c];
    for (std::uint32_t g = 0; g < used_.size(); ++g) {
      layout_.communicator_of.push_back(used_[g] ? communicator(g, me.rank) : kNone);
    }
    for (const Collective& send : schedule_.programs[me.program].collectives) {
      if (send.kind != CollectiveKind::kSendReceive) continue;
      const Group& group = schedule_.groups[send.group.value];
      const auto peer = static_cast<std::uint32_t>(send.root);
      std::vector<std::int64_t> ranks{me.rank, group.first_of(me.rank) + send.root * group.stride};
      std::sort(ranks.begin(), ranks.end());
      ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
      const std::uint32_t comm = intern(send.group, std::move(ranks), true);
      const bool known =
          std::any_of(layout_.pairs.begin(), layout_.pairs.end(), [&](const Layout::Pair& p) {
            return p.rank_class == c && p.group == send.group.value && p.peer == peer;
          });
      if (!known) layout_.pairs.push_back({c, send.group.value, peer, comm});
    }
  }

  std::uint32_t communicator(std::uint32_t g, std::int64_t rank) {
    const Group& group = schedule_.groups[g];
    const auto [it, added] = instances_.try_emplace({g, group.first_of(rank)}, kNone);
    if (added) it->second = intern(GroupId(g), members(group, rank));
    return it->second;
  }

  /// The communicator with these members. Folded: instances with the same classes are one.
  std::uint32_t intern(GroupId group, std::vector<std::int64_t> ranks, bool pair = false) {
    std::vector<std::uint32_t> classes;
    for (const std::int64_t r : ranks) classes.push_back(color_[static_cast<std::size_t>(r)]);
    std::sort(classes.begin(), classes.end());
    classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
    Signature key{static_cast<std::int64_t>(group.value), pair ? 1 : 0};
    key.insert(key.end(), classes.begin(), classes.end());
    const std::uint32_t index = communicators_.of(key);
    if (index == layout_.communicators.size()) {
      Signature where = placement(ranks);
      where.push_back(static_cast<std::int64_t>(group.value));
      layout_.communicators.push_back(
          {group, std::move(ranks), std::move(classes), shapes_.of(where)});
    }
    return index;
  }

  const Schedule& schedule_;
  const CostModel& cost_;
  const SimulationOptions& options_;
  Layout layout_;
  std::vector<bool> used_;
  std::vector<std::uint32_t> color_;  ///< By rank; after choose_classes() its class.
  Numbering communicators_, shapes_;
  std::map<std::pair<std::uint32_t, std::int64_t>, std::uint32_t>
      instances_;  ///< By group and first rank.
};

}  // namespace

std::uint32_t Layout::find(std::uint32_t rank_class, const Collective& collective,
                           std::size_t groups) const {
  if (collective.kind != CollectiveKind::kSendReceive) {
    return communicator_of[rank_class * groups + collective.group.value];
  }
  for (const Pair& p : pairs) {
    if (p.rank_class == rank_class && p.group == collective.group.value &&
        p.peer == static_cast<std::uint32_t>(collective.root)) {
      return p.communicator;
    }
  }
  throw InternalError("simulator: a send-receive without a communicator");
}

Layout make_layout(const Schedule& schedule, const CostModel& cost,
                   const SimulationOptions& options) {
  return LayoutBuilder(schedule, cost, options).build();
}

}  // namespace foreshard::sim
