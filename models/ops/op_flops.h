#pragma once

// FLOPs of each kind of device work (core/op_kind.h). docs/formats/op_operands.md holds the
// operands of each; the planner's recipes write them, the executor's kernels read them.

#include <array>
#include <cstdint>
#include <initializer_list>

#include "core/op_kind.h"
#include "core/units.h"

namespace foreshard {

/// The largest number where 64 bits do not hold the product.
std::int64_t saturated_product(std::initializer_list<std::int64_t> factors);

/// The kind's launches say their dims (docs/formats/op_operands.md); all others are bound by bytes
/// and have no FLOPs.
bool has_dims(OpKind kind);
/// FLOPs of a launch with these Launch::dims.
Flops flops_of(OpKind kind, const std::array<std::int64_t, 6>& dims);

/// What a kernel of attention computes whole although a mask hides part of it: the FLOPs that the
/// mask lets through, as dims hold them (negative). 0: nothing is hidden, or the kernel leaves it
/// out.
Flops flops_behind_mask(OpKind kind, const std::array<std::int64_t, 6>& dims);
/// Pairs of queries and keys that attention asks for: half of all if causal, of a window the keys
/// from a query backwards.
std::int64_t attended_pairs(std::int64_t queries, std::int64_t keys, bool causal,
                            std::int64_t window);

}  // namespace foreshard
