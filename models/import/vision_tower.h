#pragma once

// CLIP and SigLIP vision towers as multimodal models of the library embed them.

#include <cstdint>
#include <string>
#include <vector>

#include "models/import/layers.h"

namespace foreshard {

struct VisionTowerSpec {
  bool clip = true;  ///< Else SigLIP: no class token, bias of the patches, optional pooling head.
  std::int64_t hidden = 0, ffn = 0, layers = 0, heads = 0, channels = 3, image = 0, patch = 0;
  Activation activation = Activation::kQuickGelu;
  double eps = 1e-5, dropout = 0;
  bool head = false;

  std::int64_t side() const { return image / patch; }
  std::int64_t positions() const { return side() * side() + (clip ? 1 : 0); }
};

/// Reads "vision_config" by its own model type ("clip_vision_model" or "siglip_vision_model";
/// others are refused). `fallback` is the type where the file names none.
VisionTowerSpec read_vision_tower(HfConfig& parent, const std::string& fallback);

struct VisionTower {
  ModuleId module, patches;
  std::vector<ModuleId> blocks;
  std::vector<ModuleId>
      extra_units;  ///< Embeddings and pooling head: classes the library wraps on their own.
};

/// Takes pixel_values. Returns the hidden states after as many blocks as each entry of `features`
/// says (0 = none); without entries the last hidden state, normed where the tower does so.
VisionTower add_vision_tower(ModelBuilder& b, ModuleId parent, const std::string& name,
                             const VisionTowerSpec& spec,
                             const std::vector<std::int64_t>& features);

}  // namespace foreshard
