#pragma once

#include <string>
#include <vector>

#include "schedules/planner/config.h"
#include "study/runs_table.h"

namespace foreshard {

/// A trainer with a data parallelism of its own: gradients summed in fp32 (nanotron), or ZeRO-1
/// that is not DeepSpeed's (InternEvo, whose groups may be smaller than the job).
bool own_data_parallelism(const MeasuredRun& run);

/// Why a row's strategy is outside what the planner expresses; empty if it is inside.
std::string strategy_refusal(const MeasuredRun& run);

/// Framework, sharding and offload as the row's strategy names them. False if it names none that we
/// know. Needs n_gpus.
bool set_strategy(const MeasuredRun& run, ParallelConfig& config,
                  std::vector<std::string>& assumptions);

/// Saved activations, or the inputs of checkpointed blocks, wait in host memory.
bool offloads_activations(const MeasuredRun& run);

}  // namespace foreshard
