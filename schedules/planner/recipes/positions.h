#pragma once

// Recipes of what a model derives from positions: rotary tables and attention masks.

#include "schedules/planner/recipes/recipe.h"

namespace foreshard {

/// cos and sin of positions 0 .. s-1 in x's dtype, [1, s, width], without autograd, as Hugging Face's rotary modules make
/// them: positions to fp32, product with the inverse frequencies (buffer 0 of the module), both halves concatenated.
void rotary_table(Host& h, const Module& module, const SymTensor& x, std::int64_t width, SymTensor& cos, SymTensor& sin);

/// A causal (window 0) or sliding-window mask [b, 1, s, s]; null where scaled dot product attention needs none
/// (conventions: models/module_tree.h).
SymTensor causal_mask(Host& h, const SymTensor& x, std::int64_t window, bool always, DType dtype);

}  // namespace foreshard
