#pragma once

// Every contiguous grouping of a model's blocks into FSDP2 units, searched exactly. 80 blocks have
// 2^79 groupings; the step time of the model below is a sum of windows that see three neighbouring
// groups, so dynamic programming over (end of the last group, its size, the size of the one before)
// visits every grouping that can be best.
//
// Model of a step (F2-AG-4, F2-AG-5, F2-RS-4: one gather runs ahead; a reduction must end before
// the next one begins):
//
//   begin              max(embedding, G_1)
//   forward, group j   max(F_j, G_{j+1}): the next group is gathered behind the compute of this one
//   turn               max(head, G_last) with resharding
//   backward, group j  max(B_j, G_{j-1} + R_{j+1}): the group before is gathered, the one after is
//                      reduced
//   end                R_1
//
// F, B: compute of the group; G, R: gather and reduction times of its bytes, which share one link.
// Host time and the slowdown of kernels by transfers are left out; grouping_study.h simulates what
// the search finds in full.

#include <cstdint>
#include <functional>
#include <vector>

#include "core/units.h"
#include "study/job.h"

namespace foreshard {

/// What the model knows of a job. Blocks in order of execution.
struct WrapCosts {
  std::vector<Time> forward,
      backward;                       ///< Compute of each block; recomputation counts as backward.
  std::vector<Bytes> gather, reduce;  ///< Gathered bytes and bytes before reduction of each block.
  std::function<Time(Bytes)> gather_time, reduce_time;
  Time embedding,
      head;             ///< Compute before the first block; between forward and backward of blocks.
  Time rest;            ///< Everything else of the step.
  bool reshard = true;  ///< Gather again in backward.

  std::size_t blocks() const { return forward.size(); }
};

/// A way to group the blocks, and what the model says of it.
struct Grouping {
  std::vector<std::int64_t>
      sizes;  ///< Blocks of each group, in order; they sum to the number of blocks.
  Time step;
  Bytes buffers;  ///< Most gathered parameters, gradients and reduction inputs at once.
};

/// The model's answer for one grouping, by its own loop over the windows: what the search must
/// agree with.
Grouping evaluate_grouping(const WrapCosts& costs, std::vector<std::int64_t> sizes);

/// The fastest grouping whose buffers stay within `limit`; of equally fast ones the one with fewer
/// groups. Empty sizes if none does. O(blocks^4 / 24).
Grouping best_grouping(const WrapCosts& costs, Bytes limit = Bytes(INT64_MAX));

/// The front of time and buffers within `limit`: the fastest grouping, then slower ones that need
/// less memory, down to the least that any grouping needs. Of equally fast ones the smallest.
std::vector<Grouping> grouping_front(const WrapCosts& costs, Bytes limit = Bytes(INT64_MAX));

/// The costs of a job under FSDP2, from its plan with one block a unit. InputError for other
/// frameworks and models without blocks.
WrapCosts wrap_costs(const Job& job);

/// The job with a grouping as explicit `fully_shard` calls.
Job with_grouping(const Job& job, const std::vector<std::int64_t>& sizes);

}  // namespace foreshard
