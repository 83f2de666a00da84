#pragma once

// Parts of Llama 3.2 Vision that its two files share.

#include "models/import/layers.h"
#include "models/import/multimodal.h"

namespace foreshard {

struct MllamaVision {
  std::int64_t hidden, ffn, layers, global_layers, heads, channels, image, patch, tiles, output,
      ratios;
  double eps;
  Activation activation;
  std::vector<std::int64_t> features;  ///< Layers whose outputs are kept beside the last one.

  std::int64_t patches() const { return (image / patch) * (image / patch); }
  std::int64_t places() const { return patches() + 1; }  ///< With the class token.
  std::int64_t padded() const { return (places() + 7) / 8 * 8; }
};

/// Takes pixel_values [b tiles, c, h, w], aspect_ratio_ids [b, 1], aspect_ratio_mask [b, tiles];
/// returns [b, tiles, places, output].
ModuleId add_mllama_tower(Multimodal& m, const MllamaVision& vision);

/// Norms and MLP of a block, in the order of registration.
struct NormedBlock {
  ModuleId input_norm, mlp, attention_norm;
};

}  // namespace foreshard
