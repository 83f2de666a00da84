// Gemma 2 and Gemma 3 (text): four norms a block, scaled embedding, alternating sliding and full attention.

#include <cmath>

#include "models/import/families.h"

namespace foreshard {
namespace {

void gemma_common(HfConfig& config, DecoderSpec& spec) {
  spec.norm_style = NormStyle::kGemma;
  spec.four_norms = true;
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden));
  spec.embedding_class = spec.prefix + "TextScaledWordEmbedding";
  spec.attention.qkv_bias = spec.attention.out_bias = config.flag("attention_bias", false);
  spec.mask_calls = DecoderSpec::MaskCalls::kBoth;
  spec.attention.call.scale = 1.0 / std::sqrt(config.number("query_pre_attn_scalar", 256, 1e-6, 1e9));
  if (const Json* both = config.get("use_bidirectional_attention"); both && both->is_boolean() && both->get<bool>()) {
    config.problem("use_bidirectional_attention", "is true, which is not modelled", "false");
  }
}

}  // namespace

Model import_gemma2(HfConfig& config) {
  DecoderDefaults defaults{256000, 2304, 9216, 26, 8, 4, false, 256, 1e-6, true};
  DecoderSpec spec = read_decoder(config, "Gemma2", defaults, "hidden_activation", "gelu_pytorch_tanh");
  gemma_common(config, spec);
  const auto window = config.optional_size("sliding_window", 4096, INT32_MAX);
  spec.windows = read_windows(config, spec.layers, window.value_or(0), [](std::int64_t i) { return i % 2 == 0; });
  // Soft-capping rules SDPA out: the library has no sdpa path for this family, whatever the cap is.
  spec.attention.call.eager = true;
  spec.attention.call.softcap = config.optional_number("attn_logit_softcapping", 50.0, 1e-6, 1e9);
  CausalHead head{read_tied(config, true), config.optional_number("final_logit_softcapping", 30.0, 1e-6, 1e9)};
  config.finish();
  if (!config.usable()) return {};
  return causal_model("Gemma2ForCausalLM", "model", spec, head);
}

DecoderSpec read_gemma3_text_spec(HfConfig& config, bool images) {
  DecoderDefaults defaults{262208, 2304, 9216, 26, 8, 4, false, 256, 1e-6, true};
  DecoderSpec spec = read_decoder(config, "Gemma3", defaults, "hidden_activation", "gelu_pytorch_tanh");
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
    config.problem("attn_logit_softcapping", "is set; SDPA has no soft cap and this path is not modelled", "null");
  }
  config.ignore({"rope_local_base_freq"});
  return spec;
}

Model import_gemma3_text(HfConfig& config) {
  const DecoderSpec spec = read_gemma3_text_spec(config, false);
  CausalHead head{read_tied(config, true), config.optional_number("final_logit_softcapping", std::nullopt, 1e-6, 1e9)};
  config.finish();
  if (!config.usable()) return {};
  Model model = causal_model("Gemma3ForCausalLM", "model", spec, head);
  return model;
}

}  // namespace foreshard
