#include "sim/sharing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace foreshard {
namespace {
constexpr double kInfinity = std::numeric_limits<double>::infinity();
}  // namespace

void SharingSolver::begin(std::span<const double> capacities) {
  capacity_.assign(capacities.begin(), capacities.end());
  weight_.assign(capacities.size(), 0);
  if (users_.size() < capacities.size()) users_.resize(capacities.size());
  for (const std::uint32_t r : touched_) users_[r].clear();
  touched_.clear();
  flows_.clear();
  uses_.clear();
}

std::uint32_t SharingSolver::add_flow(double limit, std::span<const ResourceUse> uses) {
  if (uses.empty() && std::isinf(limit))
    throw InternalError("sharing: a flow without limit and resources");
  const auto index = static_cast<std::uint32_t>(flows_.size());
  flows_.push_back(
      {limit, static_cast<std::uint32_t>(uses_.size()), static_cast<std::uint32_t>(uses.size())});
  for (const ResourceUse& use : uses) {
    if (users_[use.resource].empty()) touched_.push_back(use.resource);
    users_[use.resource].push_back(index);
    weight_[use.resource] += use.weight;
    uses_.push_back(use);
  }
  return index;
}

void SharingSolver::fix(std::uint32_t flow, double rate) {
  rate_[flow] = rate;
  const Flow& f = flows_[flow];
  for (std::uint32_t u = f.first_use; u < f.first_use + f.uses; ++u) {
    const auto [resource, weight] = uses_[u];
    capacity_[resource] = std::max(0.0, capacity_[resource] - weight * rate);
    weight_[resource] -= weight;
  }
}

std::span<const double> SharingSolver::solve() {
  rate_.assign(flows_.size(), -1);
  by_limit_.resize(flows_.size());
  std::iota(by_limit_.begin(), by_limit_.end(), 0u);
  std::sort(by_limit_.begin(), by_limit_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return flows_[a].limit != flows_[b].limit ? flows_[a].limit < flows_[b].limit : a < b;
  });
  std::size_t left = flows_.size(), next_limit = 0;
  while (left > 0) {
    while (next_limit < by_limit_.size() && rate_[by_limit_[next_limit]] >= 0) ++next_limit;
    const double limit =
        next_limit < by_limit_.size() ? flows_[by_limit_[next_limit]].limit : kInfinity;
    double level = limit;
    std::uint32_t full = UINT32_MAX;
    for (const std::uint32_t r : touched_) {
      if (weight_[r] <= 0) continue;  // no open flow uses it
      const double at = capacity_[r] / weight_[r];
      if (at < level) level = at, full = r;
    }
    if (full == UINT32_MAX) {
      fix(by_limit_[next_limit++], level);
      --left;
      continue;
    }
    for (const std::uint32_t flow : users_[full]) {
      if (rate_[flow] >= 0) continue;
      fix(flow, level);
      --left;
    }
    weight_[full] = 0;
  }
  return rate_;
}

}  // namespace foreshard
