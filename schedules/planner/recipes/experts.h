#pragma once

// Mixture of experts as transformers runs it by default: tokens sorted by expert, grouped products.

#include "schedules/planner/recipes/recipe.h"

namespace foreshard {

/// x[index] over the first dimension. The gradient is index_put_ with accumulation into zeros.
SymTensor index_rows(Host& h, const SymTensor& x, const SymTensor& index);
/// An expert's activation; `code`: Activation as a statement carries it.
SymTensor activate(Host& h, std::int64_t code, const SymTensor& x);
/// grouped_mm_experts_forward: inputs x [T, h], weights [T, k], indices [T, k]; parameters gate_up,
/// down; ints as in module_tree.h.
SymTensor routed_experts(Host& h, const Statement& s, std::span<SymTensor> in);

}  // namespace foreshard
