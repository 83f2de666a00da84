#pragma once

// What the attention recipes share: attention.cc chooses, flash_attention.cc is one of its kernels.

#include <array>
#include <cstdint>
#include <span>

#include "schedules/planner/recipes/recipe.h"

namespace foreshard {

/// A tensor [b, h, s, d] laid out as q is: [b, s, h, d] in memory unless q is contiguous as it
/// stands.
SymTensor like_query(Host& h, const SymTensor& q, const Shape& shape);
/// `head`: mean head size of the products where q's and v's differ (forward one each, backward
/// three and two). `seen`: FLOPs that a mask lets through; 0: the kernel computes no more than
/// those.
std::array<std::int64_t, 6> attention_dims(const SymTensor& q, const SymTensor& k, bool causal,
                                           std::int64_t head = 0, std::int64_t seen = 0);
/// FLOPs that attention asks of products whose inner sizes add up to `sizes`; 0 where that is all
/// pairs.
std::int64_t seen_flops(const SymTensor& q, const SymTensor& k, bool causal, std::int64_t window,
                        std::int64_t sizes);
/// Kernels that sum dk and dv over the query heads of a key head.
constexpr int group_sums(std::int64_t heads, std::int64_t key_heads) {
  return key_heads != heads ? 2 : 0;
}
/// `flops` -1: all pairs (half of them if causal). `window` 0: none.
void launch_attention(Host& h, OpKind op, std::span<const SymTensor> in,
                      std::span<const SymTensor> out, const std::array<std::int64_t, 6>& dims,
                      bool causal, double scale, int kernels, std::int64_t flops = -1,
                      std::int64_t window = 0);

/// FlashAttention-2 for 16-bit q, k and v of equal head sizes up to 256, without a mask. Head sizes
/// are padded to a multiple of 8 first, the result is cut back. `window`: as attention() says.
SymTensor padded_flash(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v,
                       bool causal, double dropout_p, double scale, std::int64_t window);
/// transformers' flash_attention_forward: values are padded to the query's head size. What the
/// library refuses is refused.
SymTensor library_flash(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v,
                        const SymTensor& mask, bool causal, double dropout_p, double scale,
                        std::int64_t window);

}  // namespace foreshard
