#pragma once

// FLOPs of each kind of device work (core/op_kind.h). docs/formats/op_operands.md holds the
// operands of each; the planner's recipes write them, the executor's kernels read them.

#include <array>
#include <cstdint>
#include <initializer_list>

#include "core/op_kind.h"
#include "core/units.h"

namespace foreshard {

/// dims[4] of a product whose result a causal mask half hides: attention without a fused kernel.
/// (1: a weight gradient.)
inline constexpr std::int64_t kCausalProduct = 2;

/// The largest number where 64 bits do not hold the product.
std::int64_t saturated_product(std::initializer_list<std::int64_t> factors);

/// FLOPs of a launch. Meaning of dims: products {m, n, k, batch}; attention {batch, heads, queries,
/// keys, head dim, causal}; all other kinds have none (0 FLOPs are counted: they are bound by
/// bytes).
Flops flops_of(OpKind kind, const std::array<std::int64_t, 6>& dims);

}  // namespace foreshard
