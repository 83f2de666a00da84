#pragma once

// One row of `size`: the best way to train on so many GPUs of one machine.

#include <cstdint>
#include <optional>
#include <string>

#include "study/mesh_search.h"
#include "study/size.h"

namespace foreshard {

/// One way to use a machine.
struct SizeAttempt {
  const HardwareProfile& hardware;
  std::int64_t gpus, micro_batch;
  CheckpointKind checkpoint;
  std::optional<Mesh> mesh = {};  ///< Nothing: as the question says.
};

/// Why so many GPUs do not give the global batch; "" if they do.
std::string undivided(const SizeQuestion& q, std::int64_t gpus, std::int64_t micro_batch);
/// The job of an attempt.
Job resized(const SizeQuestion& q, const SizeAttempt& a);
/// The best of all micro-batches and kinds of checkpointing, with days, GPU-hours and price.
SizeRow budgeted_row(const SizeQuestion& q, const HardwareProfile& h, std::int64_t gpus);
/// How far the step of a row may be off, in proportion: what many micro-batches add is as uncertain
/// as the rest.
void add_range(SizeRow& row, const SizeQuestion& q);

}  // namespace foreshard
