#pragma once

// The plain Llama and GPT-2 of the memory recordings: ordinary PyTorch modules with fused norms and
// scaled dot product attention (the yardstick models; importers build the library's own forms).

#include <cstdint>

#include "models/module_tree.h"

namespace foreshard {

/// Sizes of a plain model. kv_heads 0: heads; ffn 0: 4 * hidden; head_dim 0: hidden / heads (Llama
/// only).
struct PlainModelOptions {
  std::int64_t layers = 2, hidden = 256, heads = 4, kv_heads = 0, ffn = 0, head_dim = 0,
               vocabulary = 1000, max_sequence = 8192;
  bool tied = false;     ///< The head's weight is the embedding's.
  bool qk_norm = false;  ///< Llama: RMS norm over each head of q and k.
  /// Llama only: q, k, v come from one product, gate and up from another.
  bool fused_projections = false;
  double dropout = 0;  ///< GPT-2: after attention, its projection and the MLP.
  DType dtype = DType::kFloat32;
};

Model plain_llama(const PlainModelOptions& options);
Model plain_gpt2(const PlainModelOptions& options);

}  // namespace foreshard
