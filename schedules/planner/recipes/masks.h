#pragma once

// Positions, rotary tables and attention masks as transformers builds them.

#include "schedules/planner/recipes/recipe.h"

namespace foreshard {

/// torch.arange(n) + past_seen_tokens, seen as [1, n]: the position ids of a decoder without a
/// cache.
SymTensor position_ids(Host& h, std::int64_t n);

/// What a decoder asks of create_causal_mask / create_sliding_window_causal_mask.
struct MaskRequest {
  std::int64_t window = 0;  ///< Sliding window; meaningful if `sliding`.
  bool sliding = false;
  bool always = false;    ///< Never left to SDPA's is_causal.
  bool additive = false;  ///< Eager attention: numbers in x's dtype instead of booleans.
};
/// [b, 1, s, s] for x [b, s, .], or null where SDPA needs no mask. `positions` [1, s] may be null:
/// the library then does not look for packed rows.
SymTensor decoder_mask(Host& h, const MaskRequest& request, const SymTensor& x,
                       const SymTensor& positions);

/// torch.finfo(dtype).min: what a score that is not seen gets. A number of `dtype` itself, so that
/// comparing with it works in 16 bits, too.
double lowest_of(DType dtype);

/// How torch.where gets its two scalars on the device: memory alone (SDPA's own masks; the values
/// travel with the kernel), or a fill each (a tensor that Python makes).
enum class WhereScalars : std::uint8_t { kAllocated, kFilled };
/// torch.where(mask, 0, lowest): a boolean mask (true = seen) as finite numbers of `dtype` that are
/// added to scores. The only way from one to the other.
SymTensor additive(Host& h, const SymTensor& mask, DType dtype, WhereScalars scalars);

/// cos and sin of the rotary embedding in x's dtype, [1, s, width]; `positions` [1, s].
void rotary_table(Host& h, const SymTensor& inverse_frequencies, std::int64_t width,
                  const SymTensor& x, const SymTensor& positions, std::span<SymTensor> out);

/// longrope_frequency_update: takes the long or the short frequencies for these positions. `kept`
/// are the long ones, made in the first call.
void update_long_frequencies(Host& h, SymTensor& kept, const SymTensor& frequencies,
                             const SymTensor& positions);

}  // namespace foreshard
