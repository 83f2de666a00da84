#pragma once

#include <cstdint>

#include "core/units.h"

namespace foreshard {

struct Launch;
struct Model;
struct Schedule;

/// Plan of forward, loss and backward of one sample on one device, parameters and floating inputs
/// in bfloat16, without optimizer: what ModelCosts and the op graph are taken from. InputError if
/// the model cannot take the sample.
Schedule sample_plan(const Model& model, std::int64_t micro_batch, std::int64_t sequence);

/// FLOPs by the counting rule of ModelCosts: attention in full, where the planner halves causal
/// work.
Flops counted_flops(const Launch& launch);

}  // namespace foreshard
