#pragma once

// The tiny models of the numeric goldens: decoders with attention written out in matrix products, and a multi-layer
// perceptron, module for module and rounding for rounding as the recordings' PyTorch code.

#include "core/dtype.h"
#include "core/json_fwd.h"
#include "models/module_tree.h"

namespace foreshard {

/// `config.model` of a golden file. `compute` is the dtype in which attention runs (that of the mask added to the scores).
/// Blocks are "layers.0", "layers.1", ...; the last argument of an "mlp" is its target. InputError on an unknown kind.
Model numerics_model(const Json& model, DType compute);

/// Value of an element of a mask buffer [s, s] of these models: 0 on and below the diagonal, minus infinity above.
double causal_mask_value(std::int64_t index, std::int64_t size);

}  // namespace foreshard
