#pragma once

// How should a model be wrapped? All granularities x resharding x root split, each planned and
// simulated.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "study/job.h"

namespace foreshard {

/// One way to wrap, and what comes of it.
struct WrapChoice {
  std::int64_t blocks_per_unit = 1;  ///< 0: one unit for the whole model.
  bool reshard = true;               ///< Free gathered parameters after forward.
  bool root_split = true;
  std::string options;  ///< The choice as options of the command line.
  std::int64_t units = 0;
  Time step;
  Time exposed_communication, exposed_host;
  Time busy_communication, exposed_collectives;
  std::int64_t collectives = 0;
  Bytes traffic;
  Bytes memory;  ///< Device peak.
  double tokens_per_s_per_gpu = 0;
  bool fits = true;  ///< Device and host.
  bool fits_host = true;
  std::int64_t retries = 0;  ///< Of the allocator, in all simulated steps: fits, but borderline.
  std::int64_t step_retries = 0;  ///< In the last of them.
  Bytes allocated;                ///< Peak of what the program holds, whatever the allocator keeps.
  bool pareto = false;       ///< Without retries; no other such choice is both faster and smaller.
  bool chosen = false;
  std::string verdict;  ///< Why it wins or loses.

  bool fits_well() const { return fits && retries == 0; }
  double hidden_share() const {  ///< Of the collectives' time.
    return busy_communication.value == 0 ? 1 : 1 - exposed_collectives / busy_communication;
  }
};

struct TuneResult {
  std::vector<WrapChoice> choices;  ///< By step time.
  std::size_t chosen = 0;           ///< Index; choices.size() if nothing fits.
  std::string reason;               ///< Why it is chosen, in words.
  Bytes capacity;
  std::int64_t blocks = 0;
};

/// What is given and not varied.
struct TuneLimits {
  std::optional<std::int64_t> blocks_per_unit;
  std::optional<bool> reshard, root_split;

  bool allow(const WrapChoice& c) const {
    return blocks_per_unit.value_or(c.blocks_per_unit) == c.blocks_per_unit &&
           reshard.value_or(c.reshard) == c.reshard &&
           root_split.value_or(c.root_split) == c.root_split;
  }
};

/// `progress(done, all)` is called after each choice (may be empty). InputError if the job itself
/// is impossible or its framework forms no units; single choices that the framework refuses are
/// left out.
TuneResult tune(const Job& job, const std::function<void(int, int)>& progress = {},
                const TuneLimits& limits = {});

/// The job with a choice's wrapping.
Job with_choice(const Job& job, const WrapChoice& choice);

}  // namespace foreshard
