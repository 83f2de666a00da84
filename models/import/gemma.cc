// Gemma 2 and Gemma 3: four norms a block, scaled embedding, alternating sliding and full
// attention.

#include <cmath>

#include "models/import/families.h"
#include "models/import/multimodal.h"
#include "models/import/vision_tower.h"

namespace foreshard {
namespace {

void gemma_common(HfConfig& config, DecoderSpec& spec) {
  spec.norm_style = NormStyle::kGemma;
  spec.four_norms = true;
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden));
  spec.embedding_class = spec.prefix + "TextScaledWordEmbedding";
  spec.attention.qkv_bias = spec.attention.out_bias = config.flag("attention_bias", false);
  spec.mask_calls = DecoderSpec::MaskCalls::kBoth;
  spec.attention.call.scale =
      1.0 / std::sqrt(config.number("query_pre_attn_scalar", 256, 1e-6, 1e9));
  if (const Json* both = config.get("use_bidirectional_attention");
      both && both->is_boolean() && both->get<bool>()) {
    config.problem("use_bidirectional_attention", "is true, which is not modelled", "false");
  }
}

}  // namespace

Model import_gemma2(HfConfig& config) {
  DecoderDefaults defaults{256000, 2304, 9216, 26, 8, 4, false, 256, 1e-6, true};
  DecoderSpec spec =
      read_decoder(config, "Gemma2", defaults, "hidden_activation", "gelu_pytorch_tanh");
  gemma_common(config, spec);
  const auto window = config.optional_size("sliding_window", 4096, INT32_MAX);
  spec.windows = read_windows(config, spec.layers, window.value_or(0),
                              [](std::int64_t i) { return i % 2 == 0; });
  // Soft-capping rules SDPA out: the library has no sdpa path for this family, whatever the cap is.
  spec.attention.call.eager = true;
  spec.attention.call.softcap = config.optional_number("attn_logit_softcapping", 50.0, 1e-6, 1e9);
  CausalHead head{read_tied(config, true),
                  config.optional_number("final_logit_softcapping", 30.0, 1e-6, 1e9)};
  config.finish();
  if (!config.usable()) return {};
  return causal_model("Gemma2ForCausalLM", "model", spec, head);
}

DecoderSpec read_gemma3_text_spec(HfConfig& config, bool images) {
  DecoderDefaults defaults{262208, 2304, 9216, 26, 8, 4, false, 256, 1e-6, true};
  DecoderSpec spec =
      read_decoder(config, "Gemma3", defaults, "hidden_activation", "gelu_pytorch_tanh");
  gemma_common(config, spec);
  spec.attention.qk_norm = AttentionSpec::QkNorm::kAfterTranspose;
  spec.second_rotary = true;
  const auto window = config.optional_size("sliding_window", 4096, INT32_MAX);
  const std::int64_t pattern = config.size("sliding_window_pattern", 6, kLargestLayers);
  spec.windows = read_windows(config, spec.layers, window.value_or(0),
                              [&](std::int64_t i) { return (i + 1) % pattern != 0; });
  spec.masks_always = spec.masks_always || images;
  // Declared, and without effect under sdpa.
  if (config.optional_number("attn_logit_softcapping", std::nullopt, 1e-6, 1e9)) {
    config.problem("attn_logit_softcapping",
                   "is set; SDPA has no soft cap and this path is not modelled", "null");
  }
  config.ignore({"rope_local_base_freq"});
  return spec;
}

namespace {

/// AvgPool2d over the square of patches, a norm, a product with a plain weight matrix.
ModuleId add_gemma3_projector(ModelBuilder& b, ModuleId model, const VisionTowerSpec& v,
                              std::int64_t tokens_per_side, std::int64_t hidden) {
  const ModuleId id = b.add_module(model, "multi_modal_projector", "Gemma3MultiModalProjector");
  const ParameterId weight = b.add_parameter(id, "mm_input_projection_weight", {v.hidden, hidden});
  const ModuleId norm = rms_norm_module(b, id, "mm_soft_emb_norm", "Gemma3RMSNorm", v.hidden, v.eps,
                                        NormStyle::kGemma);
  const ModuleId pool = b.add_module(id, "avg_pool", "AvgPool2d");
  Program f(b, pool, {"input"});
  f.returns({f.op_ints(Function::kAvgPool2d, {"input"}, {v.side() / tokens_per_side})});
  Program p(b, id, {"vision_outputs"});
  p.reshape(p.transpose("vision_outputs", 1, 2), {0, 0, v.side(), v.side()},
            "reshaped_vision_outputs");
  p.call(pool, {"reshaped_vision_outputs"}, "pooled_vision_outputs");
  p.view("pooled_vision_outputs", {0, 0, -1}, "pooled_vision_outputs");
  p.transpose("pooled_vision_outputs", 1, 2, "pooled_vision_outputs");
  p.call(norm, {"pooled_vision_outputs"}, "normed_vision_outputs");
  p.returns({p.op(Function::kMatmul, {"normed_vision_outputs", p.parameter(weight)})});
  return id;
}

}  // namespace

Model import_gemma3(HfConfig& config) {
  const VisionTowerSpec vision = read_vision_tower(config, "siglip_vision_model");
  HfConfig text_config = config.nested("text_config");
  text_config.choice("model_type", "gemma3_text", {"gemma3_text"});
  const DecoderSpec text = read_gemma3_text_spec(text_config, true);
  text_config.ignore(
      {"tie_word_embeddings", "final_logit_softcapping"});  // The outer model looks at neither.
  text_config.finish();
  if (vision.clip)
    config.problem("vision_config.model_type", "is a CLIP tower, which Gemma 3 cannot have",
                   "siglip_vision_model");
  const std::int64_t tokens = config.size("mm_tokens_per_image", 256);
  const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(tokens)));
  if (side > vision.side())
    config.problem("mm_tokens_per_image", "is more than the image has patches");
  const std::int64_t token =
      config.size_or("image_token_index", "image_token_id", 262144, kLargestVocabulary);
  config.ignore({"boi_token_index", "eoi_token_index", "boi_token_id", "eoi_token_id"});
  const bool tied = read_tied(config, true);
  const std::int64_t images = read_images(config);
  config.finish();
  if (!config.usable()) return {};
  Multimodal m("Gemma3ForConditionalGeneration", "Gemma3Model");
  const VisionTower tower = add_vision_tower(m.b, m.model, "vision_tower", vision, {});
  const ModuleId projector = add_gemma3_projector(m.b, m.model, vision, side, text.hidden);
  m.add_language_model(text);
  m.vision_blocks = tower.blocks;
  m.extra_units = tower.extra_units;
  Program p(m.b, m.model, {"input_ids", "pixel_values"});
  p.call(m.decoder.embedding, {"input_ids"}, "inputs_embeds");
  p.call(projector, {p.call(tower.module, {"pixel_values"})}, "image_features");
  merge_images(p, token, "image_features");
  m.sample_of(images, vision.image, side * side);
  p.returns({p.call(m.decoder.model, {"inputs_embeds"}, "hidden_states")});
  return m.finish(text.vocabulary, tied,
                  {pixel_argument({-images, vision.channels, vision.image, vision.image})});
}

Model import_gemma3_text(HfConfig& config) {
  const DecoderSpec spec = read_gemma3_text_spec(config, false);
  CausalHead head{read_tied(config, true),
                  config.optional_number("final_logit_softcapping", std::nullopt, 1e-6, 1e9)};
  config.finish();
  if (!config.usable()) return {};
  Model model = causal_model("Gemma3ForCausalLM", "model", spec, head);
  return model;
}

}  // namespace foreshard
