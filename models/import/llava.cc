// LLaVA: a CLIP or SigLIP tower, hidden states of some of its layers through a two-layer projector,
// a text decoder.

#include <fmt/core.h>

#include "models/import/families.h"
#include "models/import/multimodal.h"
#include "models/import/vision_tower.h"

namespace foreshard {
namespace {

struct Llava {
  VisionTowerSpec vision;
  DecoderSpec text;
  std::vector<std::int64_t> features;  ///< Hidden states taken, as numbers of blocks done.
  std::int64_t image_token = 32000;
  bool drop_first = true, projector_bias = true, tied = false;
  Activation activation = Activation::kGelu;
};

ModuleId add_projector(ModelBuilder& b, ModuleId model, const Llava& l) {
  const ModuleId id = b.add_module(model, "multi_modal_projector", "LlavaMultiModalProjector");
  const std::int64_t in = l.vision.hidden * static_cast<std::int64_t>(l.features.size());
  const ModuleId first = b.linear(id, "linear_1", in, l.text.hidden, l.projector_bias);
  const ModuleId second = b.linear(id, "linear_2", l.text.hidden, l.text.hidden, l.projector_bias);
  Program p(b, id, {"image_features"});
  p.call(first, {"image_features"}, "hidden_states");
  activate(p, l.activation, "hidden_states", "hidden_states");
  p.returns({p.call(second, {"hidden_states"}, "hidden_states")});
  return id;
}

void write_model(Multimodal& m, const Llava& l, const VisionTower& tower, ModuleId projector) {
  Program p(m.b, m.model, {"input_ids", "pixel_values"});
  p.call(m.decoder.embedding, {"input_ids"}, "inputs_embeds");
  std::vector<std::string> states;
  for (const std::int64_t k : l.features) states.push_back(fmt::format("hidden_states_{}", k));
  p.call_all(tower.module, {"pixel_values"}, states);
  if (l.drop_first) {
    for (const std::string& state : states) p.slice(state, 1, 1, -1, state);
  }
  const Program::Value selected =
      states.size() == 1 ? states.front() : p.cat(states, -1, "selected");
  p.call(projector, {selected}, "image_features");
  // One tensor an image, put together again.
  p.cat({p.view("image_features", {-1, l.text.hidden})}, 0, "image_features");
  merge_images(p, l.image_token, "image_features");
  p.returns({p.call(m.decoder.model, {"inputs_embeds"}, "hidden_states")});
}

// A layer counts from the end where it is negative; there are layers + 1 hidden states.
void read_feature_layers(HfConfig& config, Llava& l) {
  std::vector<std::int64_t> layers{-2};
  const Json* value = config.get("vision_feature_layer");
  if (value && value->is_array()) {
    layers =
        config.integers("vision_feature_layer", -kLargestLayers, kLargestLayers).value_or(layers);
  } else if (value) {
    layers = {config.size("vision_feature_layer", -2, kLargestLayers, -kLargestLayers)};
  }
  for (const std::int64_t k : layers) {
    const std::int64_t done = k < 0 ? k + l.vision.layers + 1 : k;
    if (done < 0 || done > l.vision.layers) {
      config.problem("vision_feature_layer",
                     fmt::format("{} of a tower of {} layers", k, l.vision.layers));
      return;
    }
    l.features.push_back(done);
  }
  if (l.features.empty()) config.problem("vision_feature_layer", "names no layer");
}

}  // namespace

Model import_llava(HfConfig& config) {
  Llava l;
  l.vision = read_vision_tower(config, "clip_vision_model");
  const TextDecoder text = read_text_decoder(config, "llama");
  l.text = text.spec;
  l.image_token = config.size_or("image_token_index", "image_token_id", 32000, kLargestVocabulary);
  l.activation = read_activation(config, "projector_hidden_act", "gelu");
  l.drop_first =
      config.choice("vision_feature_select_strategy", "default", {"default", "full"}) == "default";
  l.projector_bias = config.flag("multimodal_projector_bias", true);
  read_feature_layers(config, l);
  config.ignore({"image_seq_length", "ignore_index", "vocab_size", "image_grid_pinpoints"});
  l.tied = read_tied(config, false) || text.tied;
  const std::int64_t images = read_images(config);
  config.finish();
  if (!config.usable()) return {};
  Multimodal m("LlavaForConditionalGeneration", "LlavaModel");
  const VisionTower tower = add_vision_tower(m.b, m.model, "vision_tower", l.vision, l.features);
  const ModuleId projector = add_projector(m.b, m.model, l);
  m.add_language_model(l.text);
  m.vision_blocks = tower.blocks;
  m.extra_units = tower.extra_units;
  write_model(m, l, tower, projector);
  const std::int64_t classes = l.vision.clip && l.drop_first ? 1 : 0;
  m.sample_of(images, l.vision.image, l.vision.positions() - classes);
  return m.finish(l.text.vocabulary, l.tied,
                  {pixel_argument({-images, l.vision.channels, l.vision.image, l.vision.image})});
}

}  // namespace foreshard
