#pragma once

// Casts to 8 bits as torchao writes them, one kernel and one temporary for each tensor operation.
// Source: torchao 0.18, float8/float8_utils.py, float8_training_tensor.py.

#include "schedules/planner/recipes/recipe.h"

namespace foreshard {

/// What the temporaries of a cast are and whose.
struct Float8Owner {
  BufferCategory category;
  UnitId unit;
};

/// torch.max(torch.abs(x)): the largest magnitude, one value of x's dtype.
SymTensor float8_amax(Host& h, const SymTensor& x, const Float8Owner& owner);
/// torch.amax(torch.abs(x), dim, keepdim=True); dim is the first or the last.
SymTensor float8_amax_along(Host& h, const SymTensor& x, int dim, const Float8Owner& owner);
/// amax_to_scale: largest value of the format / amax, in double precision; fp32, amax's shape.
/// `power_of_two` rounds it down to one.
SymTensor float8_scale(Host& h, const SymTensor& amax, bool power_of_two, const Float8Owner& owner);
/// _ToFloat8ConstrFunc: x times `scale` in fp32, clamped, in 8 bits.
SymTensor float8_cast(Host& h, const SymTensor& x, const SymTensor& scale, DType dtype,
                      const Float8Owner& owner);

/// The 8-bit data of a weight, or of its transpose, that was gathered so; null if it came in the
/// compute dtype.
SymTensor gathered_in_8_bits(Host& h, const SymTensor& weight);

/// Linear layer of torchao's Float8Linear without torch.compile; under autocast `x` is cast by the
/// module, the weight is not.
SymTensor float8_linear_eager(Host& h, const SymTensor& x, const SymTensor& weight,
                              const SymTensor& bias);
/// Float8Linear runs as eager kernels: torchao's scales, no torch.compile.
bool float8_is_eager(const ParallelConfig& c);

}  // namespace foreshard
