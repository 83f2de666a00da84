#pragma once

// Losses that are computed where the model's head is, so that the logits of all tokens never exist
// at once.

#include "models/module_tree.h"
#include "schedules/planner/config.h"

namespace foreshard {

/// The loss changes what the head does: kChunked, kFused.
bool changes_head(LossKind loss);

/// `model` with another head, as a script that uses such a loss has it:
///   kChunked: the head runs on `loss_chunks` chunks of the sequence and returns their logits one
///   by one (torchtune,
///     CEWithChunkedOutputLoss);
///   kFused: the head takes the targets too and returns the mean loss (Liger-Kernel's fused linear
///   cross entropy); the root
///     gets the further input "targets".
/// InputError if the model's output does not come straight from a linear head on tokens.
Model with_loss_head(const Model& model, const ParallelConfig& config);

}  // namespace foreshard
