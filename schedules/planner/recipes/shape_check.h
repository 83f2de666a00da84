#pragma once

// What eager PyTorch would refuse: operands whose shapes or dtypes do not fit. Models of one's own get here
// with widths that nothing checked before.

#include <string_view>

#include "schedules/planner/host/host_impl.h"

namespace foreshard {

/// HostRefusal with the module that runs: "up: matrix product of [16, 64] and [17, 64]".
[[noreturn]] void refuse_shapes(Host& h, std::string_view function, const Shape& a, const Shape& b);

/// The inner dimensions of a product, and the row that is added to it.
void check_product(Host& h, const SymTensor& a, const SymTensor& b, const SymTensor& bias);
/// Weights of a norm are as wide as its input.
void check_norm(Host& h, const SymTensor& x, const SymTensor& weight);
/// Queries [batch, heads, n, d], keys and values of as many positions, whose heads divide theirs,
/// of one dtype.
void check_attention(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v);
/// One target a row.
void check_targets(Host& h, const SymTensor& logits, const SymTensor& targets);

}  // namespace foreshard
