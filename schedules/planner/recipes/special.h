#pragma once

// Recipes that are compositions: autocast forms, experts, rotary tables, masks.

#include "schedules/planner/recipes/recipe.h"

namespace foreshard {

/// Under torch.autocast products and attention run in bf16: fp32 arguments are cast first (leaf
/// weights once, see HostImpl::autocast_cache); norms and losses run in fp32. Without autocast
/// these are the plain functions.
SymTensor autocast_linear(Host& h, const SymTensor& x, const SymTensor& weight,
                          const SymTensor& bias);
SymTensor autocast_attention(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v,
                             const SymTensor& mask, bool causal, double dropout_p, double scale,
                             std::int64_t window);
SymTensor autocast_matmul(Host& h, const SymTensor& a, const SymTensor& b, std::int64_t seen = 0);
SymTensor autocast_float(Host& h, const SymTensor& x);
/// An argument of a function that runs in the low dtype, such as a convolution. Arguments are cast
/// from right to left.
SymTensor autocast_low(Host& h, const SymTensor& x);
/// What autocast casts products to.
DType autocast_dtype(const Host& h);
/// softmax, sum, cumsum and norm are asked for fp32 results (fp32_set_opt_dtype,
/// fp32_append_dtype): dtype of the result for an input of dtype `own`.
DType autocast_sum_dtype(Host& h, DType own);
SymTensor autocast_conv1d(Host& h, const SymTensor& x, const SymTensor& weight,
                          const SymTensor& bias);
SymTensor autocast_layer_norm(Host& h, const SymTensor& x, const SymTensor& weight,
                              const SymTensor& bias, double eps);
SymTensor autocast_rms_norm(Host& h, const SymTensor& x, const SymTensor& weight, double eps);

/// Whether attention is handed a mask: its own, or the one of packed rows.
bool takes_mask(const Host& h, const SymTensor& mask, bool causal);
/// k or v with every query head: expand and reshape, which copies.
SymTensor repeat_to_heads(Host& h, const SymTensor& t, std::int64_t heads);
/// Attention as products and a softmax, which keeps its weights: where no fused kernel takes the
/// head size, or on request (AttentionKind::kMath). `mask` is added to the scores, or null.
SymTensor math_attention(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v,
                         const SymTensor& mask, bool causal, double dropout_p, double scale);
/// AttentionKind::kEager; `mask` is added to the scores, or null.
SymTensor eager_attention(Host& h, const SymTensor& q, const SymTensor& k, const SymTensor& v,
                          const SymTensor& mask, bool causal, double dropout_p, double scale,
                          std::int64_t window);

/// x /= y: x itself with a new history; its old values are copied where y's gradient needs them.
SymTensor div_in_place(Host& h, const SymTensor& x, const SymTensor& y);
/// x *= y for a y that takes no gradient: x itself with a new history.
SymTensor mul_in_place(Host& h, const SymTensor& x, const SymTensor& y);
/// Sum of all elements, a scalar.
SymTensor sum_all(Host& h, const SymTensor& x);
/// Every expert on every token, results summed: w1 and w3 [E, H, D], w2 [E, D, H].
SymTensor dense_experts(Host& h, const SymTensor& x, const SymTensor& w1, const SymTensor& w2,
                        const SymTensor& w3);

/// torch.arange(n) in int64.
SymTensor positions(Host& h, std::int64_t n);
/// x with `value` where the mask is true; saves the mask.
SymTensor masked_fill(Host& h, const SymTensor& x, const SymTensor& mask, double value);
/// DBRX's loop over experts, each given its even share of tokens: x [T, h], weights [T, k], indices
/// [T, k].
SymTensor looped_experts(Host& h, const Statement& s, std::span<SymTensor> in);

/// Groups of functions by file; false if `s` is none of them.
bool run_convolution(Host& h, const Statement& s, std::span<SymTensor> in,
                     std::span<SymTensor> out);
bool run_masked(Host& h, const Statement& s, std::span<SymTensor> in, std::span<SymTensor> out);
bool run_vision(Host& h, const Module& module, const Statement& s, std::span<SymTensor> in,
                std::span<SymTensor> out);
bool run_quantised(Host& h, const Module& module, const Statement& s, std::span<SymTensor> in,
                   std::span<SymTensor> out);
bool run_linear_attention(Host& h, const Statement& s, std::span<SymTensor> in,
                          std::span<SymTensor> out);

/// Functions with several results or special rules; false if `s` is none of them.
bool run_special(Host& h, const Module& module, const Statement& s, std::span<SymTensor> in,
                 std::span<SymTensor> out);

}  // namespace foreshard
