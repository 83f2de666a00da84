#include "hwprofiles/nic_search.h"

#include <algorithm>
#include <limits>

namespace foreshard {
namespace {

/// Speeds between nodes that the search tries, GB/s (speedArrayInter and its kin).
std::span<const double> speeds_between_nodes(double compute_capability) {
  static constexpr double kOld[] = {48, 30, 28, 24, 20, 18,  15,  12,   10,  9,
                                    7,  6,  5,  4,  3,  2.4, 1.2, 0.24, 0.12};
  static constexpr double kHopper[] = {48, 45, 42, 40, 30,  24,  22,   20,  17.5,
                                       15, 12, 6,  3,  2.4, 1.2, 0.24, 0.12};
  static constexpr double kBlackwell[] = {96, 86,   80, 48, 45.1, 42, 40,  30,  24,   22,
                                          20, 17.5, 15, 12, 6,    3,  2.4, 1.2, 0.24, 0.12};
  if (compute_capability >= 10) return kBlackwell;
  if (compute_capability >= 9) return kHopper;
  return kOld;
}

constexpr double kLeastNextSpeed = 0.49;  ///< Of the best found: slower ones are not tried.

/// Channels of each NIC at a speed. NCCL compares NICs with the whole GB/s of it; below one GB/s
/// every NIC would take channels without end.
std::vector<int> channels_at(std::span<const double> rates, double speed) {
  const double taken = std::max(1.0, static_cast<double>(static_cast<int>(speed)));
  std::vector<int> out;
  for (const double rate : rates) out.push_back(static_cast<int>(rate * 1e-9 / taken));
  return out;
}

/// Slower than any speed of the list: a channel on each NIC from the rate on that moves most.
std::vector<int> one_channel_each(std::span<const double> rates) {
  const auto not_below = [&](double least) {
    return std::count_if(rates.begin(), rates.end(), [&](double r) { return r >= least; });
  };
  double best = 0, least = 0;
  for (const double rate : rates) {
    if (rate * static_cast<double>(not_below(rate)) <= best) continue;
    best = rate * static_cast<double>(not_below(rate));
    least = rate;
  }
  std::vector<int> out;
  for (const double rate : rates) out.push_back(rate >= least ? 1 : 0);
  return out;
}

}  // namespace

NicSearch search_nics(std::span<const double> rates, double compute_capability) {
  NicSearch found;
  double best = 0, best_speed = 0;
  const double fastest = rates.empty() ? 0 : *std::max_element(rates.begin(), rates.end()) * 1e-9;
  for (const double speed : speeds_between_nodes(compute_capability)) {
    if (speed > fastest) continue;
    if (best > 0 && speed / best_speed <= kLeastNextSpeed) break;
    const std::vector<int> channels = channels_at(rates, speed);
    int count = 0;
    for (const int c : channels) count += c;
    if (count * speed <= best) continue;
    best = count * speed;
    best_speed = speed;
    found.channels = channels;
  }
  if (found.channels.empty()) found.channels = one_channel_each(rates);
  double pace = std::numeric_limits<double>::infinity();
  int count = 0;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (found.channels[i] == 0) continue;
    count += found.channels[i];
    pace = std::min(pace, rates[i] / found.channels[i]);
  }
  found.bytes_per_second = count > 0 ? count * pace : 0;
  return found;
}

}  // namespace foreshard
