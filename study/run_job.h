#pragma once

#include <string>
#include <vector>

#include "sim/cost/parameters.h"
#include "study/job.h"
#include "study/runs_table.h"

namespace foreshard {

/// A measured run as a job of ours.
struct RunJob {
  Job job;
  CostParameters
      parameters;  ///< The caller's, with the software facts of the run (attention kernel, ...).
  double extra_bytes =
      0;  ///< Memory traffic of each step outside the schedule (a recipe's metrics, casts).
  bool calibrates =
      true;  ///< May inform the training ceilings: 16-bit products, dense, nothing offloaded.
  bool compares_memory = true;           ///< The row's memory is one that the plan predicts.
  std::vector<std::string> assumptions;  ///< What the row does not say and was assumed.
  std::string refusal;                   ///< Not empty: the run cannot be expressed, and why.
};

/// Translates a row. The software stack behind it is recognised by its own names in the columns
/// (precision "bf16/PURE" is llm-foundry's, "FSDP2" torchtitan's recipe, ...), never by the row's
/// source. `machine`: the machine that the run was made on, whatever its words for GPU and network.
RunJob job_of_run(const MeasuredRun& stated, const CostParameters& parameters,
                  const HardwareProfile* machine = nullptr);

}  // namespace foreshard
