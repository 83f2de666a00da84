#pragma once

// The tiny models of the numeric goldens: decoders with attention written out in matrix products,
// and a multi-layer perceptron, module for module and rounding for rounding as the recordings'
// PyTorch code.

#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "core/json_fwd.h"
#include "models/module_tree.h"

namespace foreshard {

/// `config.model` of a golden file. `compute` is the dtype in which attention runs (that of the
/// mask added to the scores). Blocks are "layers.0", "layers.1", ...; the last argument of an "mlp"
/// is its target. InputError on an unknown kind.
Model numerics_model(const Json& model, DType compute);

/// Values of these models' buffers: masks [s, s] are 0 on and below the diagonal and minus infinity
/// above, divisors (no dimension) the square root of the head size.
double numerics_buffer_value(const Json& model, const std::vector<std::int64_t>& shape,
                             std::int64_t index);

}  // namespace foreshard
