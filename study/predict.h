#pragma once

// All that is said of one job: step and memory, what memory it needs if it does not fit, and how
// far the step may be off. One plan, one preparation for all simulations; these run on all cores,
// and the answer does not depend on how many there are.

#include <optional>

#include "study/evaluate.h"
#include "study/uncertainty.h"

namespace foreshard {

struct Prediction {
  Evaluation evaluation;
  std::optional<Bytes> needed_memory;  ///< As needed_memory() finds it.
  StepUncertainty uncertainty;
};

/// As evaluate(), needed_memory() and uncertainty_of() one after the other.
Prediction predict(const Job& job, const SimulationOptions& options = {});

}  // namespace foreshard
