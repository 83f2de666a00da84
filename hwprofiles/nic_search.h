#pragma once

// NICs of unequal rates: NCCL's channel search gives all channels one speed.

#include <span>
#include <vector>

namespace foreshard {

/// What the search makes of a node's NICs. Every channel carries the same share of the data, so
/// that the NIC with the least for each of its channels sets the pace of all.
struct NicSearch {
  std::vector<int> channels;    ///< Of each NIC; 0: not used.
  double bytes_per_second = 0;  ///< Of all channels together; never more than the NICs have.
};

/// src/graph/search.cc of NCCL 2.30.7, as far as NICs decide: speeds from the fastest NIC's down a
/// list, each NIC as many channels as fit, until the next speed is below half of the best one's;
/// more in sum wins. `rates`: B/s of each NIC.
NicSearch search_nics(std::span<const double> rates, double compute_capability);

}  // namespace foreshard
