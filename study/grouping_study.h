#pragma once

// Which contiguous grouping of the blocks is best when it is simulated in full? The search
// (wrap_search.h) knows a simpler step than the simulator does, so what it finds is simulated
// beside the groupings that people write: equal groups.

#include <cstddef>
#include <string>
#include <vector>

#include "core/units.h"
#include "study/job.h"
#include "study/wrap_search.h"

namespace foreshard {

/// One grouping that was simulated.
struct SimulatedGrouping {
  Grouping grouping;      ///< With what the search's model says of it.
  bool even = false;      ///< "every:K".
  bool on_front = false;  ///< Found by the search.
  Time step;
  Bytes memory, allocated;   ///< Device peak; peak of what the program holds.
  std::int64_t retries = 0;  ///< Of the allocator, in all simulated steps.
  bool fits = true;
};

struct GroupingStudy {
  std::vector<Grouping> front;          ///< All of the search's, the fastest first.
  std::vector<SimulatedGrouping> rows;  ///< By units, fewest first.
  std::size_t chosen = 0;               ///< rows.size() if none fits.
  std::size_t each = 0;                 ///< One block a unit.
  std::string reason;                   ///< Why `chosen` is.
};

/// Of the front those worth a look (at least 0.2 % faster than the next smaller one), and equal
/// groups of each number of units. Chosen as tune() does: with headroom the fastest, or what needs
/// least memory close to it. InputError as wrap_costs().
GroupingStudy study_groupings(const Job& job);

}  // namespace foreshard
