// ZeRO 1 and 2: which ranks get a program of their own.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/integers.h"
#include "schedules/planner/frameworks/zero12.h"

namespace foreshard::zero {
namespace {

/// Jobs of so few ranks have a program for each, if CPU ranks can execute it or if it is offloaded.
constexpr std::int64_t kMostOwnPrograms = 16, kMostParameters = 100'000'000;
/// Programs of ranks that copy to host memory.
constexpr std::size_t kMostCopying = 64;

}  // namespace

bool Zero12::own_programs(const Model& model) const {
  return world_ <= kMostOwnPrograms &&
         (offload_optimizer_ || model.parameter_count().value <= kMostParameters);
}

bool Zero12::chains_copies(const Model& model) const {
  return offload_optimizer_ && !own_programs(model);
}

/// Which parameters touch a rank's partition decides its copies, norms and gradient buffer: hardly
/// two ranks are alike. A large job has rank 0's program for all but the rank whose whole gradients
/// (Z2-G-4) need most memory and, offloaded, the ranks for whose copies all others wait.
std::vector<std::uint64_t> Zero12::rank_classes(const Model& model) const {
  std::vector<std::uint64_t> classes(static_cast<std::size_t>(world_));
  if (own_programs(model)) {
    std::iota(classes.begin(), classes.end(), 0);
    return classes;
  }
  const auto own = [&](std::int64_t rank) {
    classes[static_cast<std::size_t>(rank)] = static_cast<std::uint64_t>(rank);
  };
  own(heaviest_rank(model));
  if (chains_copies(model)) {
    for (const std::vector<std::int64_t>& group : copying_groups(awaited_owners(model)))
      own(group[0]);
  }
  return classes;
}

/// Rank 0 if no other keeps more gradients.
std::int64_t Zero12::heaviest_rank(const Model& model) const {
  std::vector<std::int64_t> kept(static_cast<std::size_t>(world_));
  for (const FlatGroup& g : flat_groups(model)) {
    for (std::size_t i = 0; i < g.order.size(); ++i) {
      const std::int64_t numel = model.at(g.order[i]).numel();
      for (std::int64_t r = g.first[i] / g.partition; r * g.partition < g.first[i] + numel; ++r)
        kept[static_cast<std::size_t>(r)] += numel;
    }
  }
  return std::max_element(kept.begin(), kept.end()) - kept.begin();
}

/// Buckets as they fill where gradients arrive in the reverse order of the parameters; in stage 1
/// the step fills them in their order.
std::vector<std::vector<ParameterId>> Zero12::expected_buckets(const Model& model) const {
  std::vector<ParameterId> order;
  for (const FlatGroup& g : flat_groups(model))
    order.insert(order.end(), g.registered.begin(), g.registered.end());
  if (stage2_ || overlap_) {
    order.clear();
    for (const ParameterId id : parameter_order(model))
      if (model.at(id).trainable) order.push_back(id);
    std::reverse(order.begin(), order.end());
  }
  std::vector<std::vector<ParameterId>> buckets(1);
  std::int64_t elements = 0;
  for (const ParameterId id : order) {
    const std::int64_t numel = model.at(id).numel();
    if (elements + numel > options_.reduce_bucket_size && !buckets.back().empty()) {
      buckets.emplace_back();
      elements = 0;
    }
    buckets.back().push_back(id);
    elements += numel;
  }
  return buckets;
}

/// The owners of a bucket copy side by side, and the next bucket's collective waits for the one
/// that copies most, of several for any (here the one in the middle): of each parameter that rank
/// of its bucket.
std::map<ParameterId, std::int64_t> Zero12::awaited_owners(const Model& model) const {
  std::map<ParameterId, std::pair<std::int64_t, std::int64_t>> places;  // First element, partition.
  for (const FlatGroup& g : flat_groups(model))
    for (std::size_t i = 0; i < g.order.size(); ++i) places[g.order[i]] = {g.first[i], g.partition};
  const bool whole = stage2_ && config_.accumulate > 1 && !compact();  // accumulate_on_host
  std::map<ParameterId, std::int64_t> awaited;
  for (const std::vector<ParameterId>& bucket : expected_buckets(model)) {
    std::map<std::int64_t, std::int64_t> copied;
    for (const ParameterId id : bucket) {
      const auto [first, partition] = places.at(id);
      const std::int64_t end = first + model.at(id).numel();
      for (std::int64_t r = first / partition; r * partition < end; ++r) {
        const std::int64_t part =
            std::min(end, (r + 1) * partition) - std::max(first, r * partition);
        copied[r] += whole ? end - first : part;
      }
    }
    std::int64_t most = 0;
    std::vector<std::int64_t> busiest;
    for (const auto& [rank, numel] : copied) {
      if (numel > most) busiest.clear();
      most = std::max(most, numel);
      if (numel == most) busiest.push_back(rank);
    }
    for (const ParameterId id : bucket) awaited[id] = busiest[busiest.size() / 2];
  }
  return awaited;
}

/// The first of each group has the group's program and makes the copies of all of it.
std::vector<std::vector<std::int64_t>> Zero12::copying_groups(
    const std::map<ParameterId, std::int64_t>& awaited) const {
  std::set<std::int64_t> ranks;
  for (const auto& [id, rank] : awaited) ranks.insert(rank);
  ranks.erase(0);  // Rank 0's program is that of the ranks that nobody waits for.
  const std::size_t size = ceil_div(std::max<std::size_t>(ranks.size(), 1), kMostCopying);
  std::vector<std::vector<std::int64_t>> groups;
  for (const std::int64_t rank : ranks) {
    if (groups.empty() || groups.back().size() == size) groups.emplace_back();
    groups.back().push_back(rank);
  }
  return groups;
}

std::map<ParameterId, std::int64_t> Zero12::guests_of(const Model& model, std::int64_t rank) const {
  std::map<ParameterId, std::int64_t> guests;
  if (!chains_copies(model)) return guests;
  const std::map<ParameterId, std::int64_t> awaited = awaited_owners(model);
  for (const std::vector<std::int64_t>& group : copying_groups(awaited)) {
    if (group[0] != rank) continue;
    for (const auto& [id, owner] : awaited)
      if (owner != rank && std::binary_search(group.begin(), group.end(), owner))
        guests.emplace(id, owner);
  }
  return guests;
}

std::vector<std::string> Zero12::not_modelled(const Model& model) const {
  if (!chains_copies(model)) return {};
  const std::vector<std::vector<std::int64_t>> groups = copying_groups(awaited_owners(model));
  std::size_t ranks = 0;
  for (const std::vector<std::int64_t>& group : groups) ranks += group.size();
  std::string text = fmt::format(
      "gradient copies to host memory of all {} ranks one by one: those of the {} ranks that the "
      "others wait for are planned, bucket after bucket",
      world_, ranks);
  if (ranks > groups.size())
    text += fmt::format(", on {} ranks that stand for their neighbours", groups.size());
  return {text + "; the others copy when rank 0 does"};
}

std::uint64_t Zero12::rank_class(const Model& model, const ParallelConfig&,
                                 std::int64_t rank) const {
  if (classes_.empty()) classes_ = rank_classes(model);
  return classes_.at(static_cast<std::size_t>(rank));
}

}  // namespace foreshard::zero
