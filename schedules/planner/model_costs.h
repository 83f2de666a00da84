#pragma once

#include <cstdint>

#include "models/describe.h"

namespace foreshard {

/// FLOPs of one forward and backward of a sample and the bytes kept between them, from a plan of
/// the model on one device: the same ops that a training step launches. InputError if the model
/// cannot take the sample.
ModelCosts model_costs(const Model& model, std::int64_t micro_batch, std::int64_t sequence);

}  // namespace foreshard
