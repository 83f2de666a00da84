#pragma once

// All that is said of one job: step and memory, what memory it needs if it does not fit, how far
// the step may be off, and what would be better. One plan, one preparation for all simulations;
// all of it runs on all cores at once, and the answer does not depend on how many there are.

#include <cstddef>
#include <optional>
#include <vector>

#include "study/evaluate.h"
#include "study/suggest.h"
#include "study/uncertainty.h"

namespace foreshard {

struct Prediction {
  Evaluation evaluation;
  std::optional<Bytes> needed_memory;  ///< As needed_memory() finds it.
  StepUncertainty uncertainty;
  std::vector<Suggestion> suggestions;
};

/// As evaluate(), needed_memory(), uncertainty_of() and, if there may be any, suggest() one after
/// the other.
Prediction predict(const Job& job, const SimulationOptions& options = {},
                   std::size_t most_suggestions = 0);

}  // namespace foreshard
