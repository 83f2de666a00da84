#pragma once

// Max-min fair sharing: flows with rate limits over resources with capacities. Knows nothing of
// networks.

#include <cstdint>
#include <span>
#include <vector>

namespace foreshard {

/// Use of one resource by a flow: `weight` units of the resource for each unit of the flow's rate;
/// positive.
struct ResourceUse {
  std::uint32_t resource = 0;
  double weight = 1;
};

/// Finds the max-min fair rates: no flow can gain without a loss for a flow that has no more, and
/// no flow exceeds its limit. Progressive filling: all rates grow together; a flow stops at its
/// limit or when a resource that it uses is full. Storage is kept between calls. Not thread-safe.
class SharingSolver {
 public:
  /// Starts a new problem over resources of these capacities (units per second, not negative).
  void begin(std::span<const double> capacities);
  /// Adds a flow with a rate limit (not negative, may be infinite only if it uses a resource);
  /// returns its index.
  std::uint32_t add_flow(double limit, std::span<const ResourceUse> uses);
  /// The rates, by flow index; valid until begin().
  std::span<const double> solve();

 private:
  struct Flow {
    double limit;
    std::uint32_t first_use, uses;
  };
  void fix(std::uint32_t flow, double rate);

  std::vector<double> capacity_;        ///< Left over by fixed flows.
  std::vector<double> weight_;          ///< Sum over flows not fixed yet.
  std::vector<std::uint32_t> touched_;  ///< Resources that some flow uses.
  std::vector<Flow> flows_;
  std::vector<ResourceUse> uses_;
  std::vector<std::uint32_t> by_limit_;            ///< Flows by rising limit.
  std::vector<double> rate_;                       ///< -1: not fixed yet.
  std::vector<std::vector<std::uint32_t>> users_;  ///< Flows of each resource.
};

}  // namespace foreshard
