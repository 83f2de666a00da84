#pragma once

// FLOPs of each kind of device work (core/op_kind.h). docs/formats/op_operands.md holds the
// operands of each; the planner's recipes write them, the executor's kernels read them.

#include <array>
#include <cstdint>

#include "core/op_kind.h"
#include "core/units.h"

namespace foreshard {

/// FLOPs of a launch. Meaning of dims: products {m, n, k, batch}; attention {batch, heads, queries,
/// keys, head dim, causal}; all other kinds have none (0 FLOPs are counted: they are bound by
/// bytes).
Flops flops_of(OpKind kind, const std::array<std::int64_t, 6>& dims);

}  // namespace foreshard
