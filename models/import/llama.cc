// Llama 1/2/3, Mistral, Qwen2 and Qwen3: one decoder, different defaults, biases and norms.

#include "models/import/families.h"

namespace foreshard {
namespace {

Model finish(HfConfig& config, const DecoderSpec& spec, const std::string& class_name, bool tied) {
  config.finish();
  if (!config.usable()) return {};
  return causal_model(class_name, "model", spec, {tied, std::nullopt});
}

}  // namespace

void read_qwen_windows(HfConfig& config, DecoderSpec& spec, std::int64_t max_window_layers) {
  const bool used = config.flag("use_sliding_window", false);
  const auto window = config.optional_size("sliding_window", 4096, INT32_MAX);
  const std::int64_t first = config.size("max_window_layers", max_window_layers, kLargestLayers, 0);
  const std::int64_t effective = used ? window.value_or(0) : 0;
  spec.windows = read_windows(config, spec.layers, effective,
                              [&](std::int64_t layer) { return effective > 0 && layer >= first; });
  spec.mask_calls = DecoderSpec::MaskCalls::kFullAlways;
}

DecoderSpec read_llama_spec(HfConfig& config) {
  DecoderDefaults defaults{32000, 4096, 11008, 32, 32, {}, true, {}, 1e-6, true};
  DecoderSpec spec = read_decoder(config, "Llama", defaults);
  spec.attention.qkv_bias = spec.attention.out_bias = config.flag("attention_bias", false);
  spec.mlp_bias = config.flag("mlp_bias", false);
  config.ignore({"pretraining_tp"});
  return spec;
}

DecoderSpec read_mistral_spec(HfConfig& config) {
  DecoderDefaults defaults{32000, 4096, 14336, 32, 32, 8, false, {}, 1e-6, false};
  DecoderSpec spec = read_decoder(config, "Mistral", defaults);
  spec.positions_before_table = true;
  const auto window = config.optional_size("sliding_window", 4096, INT32_MAX);
  if (window) spec.windows.assign(static_cast<std::size_t>(spec.layers), *window);
  return spec;
}

DecoderSpec read_qwen2_spec(HfConfig& config) {
  DecoderDefaults defaults{151936, 4096, 22016, 32, 32, 32, true, {}, 1e-6, false};
  DecoderSpec spec = read_decoder(config, "Qwen2", defaults);
  spec.attention.qkv_bias = true;
  read_qwen_windows(config, spec, 28);
  return spec;
}

DecoderSpec read_qwen3_spec(HfConfig& config) {
  DecoderDefaults defaults{151936, 4096, 22016, 32, 32, 32, true, 128, 1e-6, false};
  DecoderSpec spec = read_decoder(config, "Qwen3", defaults);
  spec.attention.qkv_bias = spec.attention.out_bias = config.flag("attention_bias", false);
  spec.attention.qk_norm = AttentionSpec::QkNorm::kBeforeTranspose;
  read_qwen_windows(config, spec, 28);
  return spec;
}

Model import_llama(HfConfig& config) {
  return finish(config, read_llama_spec(config), "LlamaForCausalLM", read_tied(config, false));
}

Model import_mistral(HfConfig& config) {
  return finish(config, read_mistral_spec(config), "MistralForCausalLM", read_tied(config, false));
}

Model import_qwen2(HfConfig& config) {
  return finish(config, read_qwen2_spec(config), "Qwen2ForCausalLM", read_tied(config, false));
}

Model import_qwen3(HfConfig& config) {
  return finish(config, read_qwen3_spec(config), "Qwen3ForCausalLM", read_tied(config, false));
}

}  // namespace foreshard
