#pragma once

// Which ranks need simulating. Ranks that run the same program and whose groups look the same
// behave the same, so one of them stands for all: the coarsest partition of the ranks for which
// this holds is found by refinement (start from the programs; split a class while its members'
// groups contain different mixtures of classes).

#include <cstdint>
#include <vector>

#include "schedules/schedule.h"
#include "sim/cost_model.h"
#include "sim/options.h"

namespace foreshard::sim {

inline constexpr std::uint32_t kNone = UINT32_MAX;

/// Ranks that behave alike. Unfolded: one rank each.
struct RankClass {
  std::int64_t rank = 0;  ///< The smallest of them; it is the one simulated.
  std::int64_t count = 1;
  std::uint32_t program = 0;
};

/// One communicator as the simulated ranks see it: an instance of a group (or the pair of a send
/// and its receive).
struct Communicator {
  GroupId group;
  std::vector<std::int64_t> ranks;     ///< All members, ascending.
  std::vector<std::uint32_t> classes;  ///< Simulated members; each must arrive once.
  std::uint32_t shape = 0;             ///< Communicators of equal shape lie alike on the nodes.
};

struct Layout {
  std::vector<RankClass> classes;
  std::vector<Communicator> communicators;
  /// [class * groups + group]: index into communicators; kNone if the class does not use the group.
  std::vector<std::uint32_t> communicator_of;
  /// Communicators of send-receive, by class, group and peer.
  struct Pair {
    std::uint32_t rank_class, group, peer, communicator;
  };
  std::vector<Pair> pairs;

  /// Communicator of one collective of a class.
  std::uint32_t find(std::uint32_t rank_class, const Collective& collective,
                     std::size_t groups) const;
};

/// Of a schedule that has passed check_structure().
Layout make_layout(const Schedule& schedule, const CostModel& cost,
                   const SimulationOptions& options);

}  // namespace foreshard::sim
