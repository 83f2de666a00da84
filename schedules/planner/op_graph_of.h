#pragma once

#include <cstdint>

#include "models/op_graph.h"

namespace foreshard {

struct Model;

/// The ops of forward, loss and backward of one sample on one device in 16 bit, from a plan of the
/// model: the ones a training step launches. InputError if the model cannot take the sample.
OpGraph op_graph_of(const Model& model, std::int64_t micro_batch, std::int64_t sequence);

}  // namespace foreshard
