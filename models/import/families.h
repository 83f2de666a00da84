#pragma once

// One builder per Hugging Face model type. Each reads its keys from the config (problems and
// warnings go where the config's do) and builds the module tree; it returns an empty model if the
// config has problems.

#include "models/import/decoder.h"
#include "models/import/hf_config.h"

namespace foreshard {

Model import_llama(HfConfig& config);
Model import_mistral(HfConfig& config);
Model import_qwen2(HfConfig& config);
Model import_qwen3(HfConfig& config);
Model import_gemma2(HfConfig& config);
Model import_gemma3_text(HfConfig& config);
Model import_phi(HfConfig& config);
Model import_phi3(HfConfig& config);
Model import_gpt2(HfConfig& config);
Model import_gpt_neox(HfConfig& config);
Model import_bert_classifier(HfConfig& config);
Model import_vit_classifier(HfConfig& config);
Model import_mixtral(HfConfig& config);
Model import_qwen2_moe(HfConfig& config);
Model import_deepseek_v3(HfConfig& config);
Model import_dbrx(HfConfig& config);
Model import_qwen3_moe(HfConfig& config);
Model import_stablelm(HfConfig& config);
Model import_qwen3_next(HfConfig& config);
Model import_t5(HfConfig& config);
Model import_llava(HfConfig& config);
Model import_gemma3(HfConfig& config);
Model import_qwen2_5_vl(HfConfig& config);
Model import_mllama(HfConfig& config);
/// MosaicML's MPT as llm-foundry trains it; not a transformers class of ours to import, but the
/// catalogue's MPT models.
Model import_mpt(HfConfig& config);

/// Text decoders that multimodal models embed: the keys of one nested config.
DecoderSpec read_llama_spec(HfConfig& config);
DecoderSpec read_mistral_spec(HfConfig& config);
DecoderSpec read_qwen2_spec(HfConfig& config);
DecoderSpec read_qwen3_spec(HfConfig& config);
DecoderSpec read_gemma3_text_spec(HfConfig& config, bool images);

// ---- reading what most decoders have in common ----

struct DecoderDefaults {
  std::int64_t vocabulary, hidden, ffn, layers, heads;
  std::optional<std::int64_t> kv_heads;  ///< Value of an absent key; none: the number of heads.
  bool kv_nullable = true;               ///< null is allowed and means the number of heads.
  std::optional<std::int64_t> head_dim;  ///< Value of an absent key; none: hidden / heads.
  double eps = 1e-6;
  bool hidden_multiple_of_heads = false;  ///< Even with head_dim given (the library's own check).
  const char* eps_key = "rms_norm_eps";
  bool own_head_dim = true;  ///< The file may say "head_dim".
};
/// Fills sizes, heads, norm, dropout, activation and rotary width; checks divisibility.
DecoderSpec read_decoder(HfConfig& config, const std::string& prefix,
                         const DecoderDefaults& defaults, const char* activation_key = "hidden_act",
                         const char* activation = "silu");
/// "layer_types" of the file or `fallback`, as windows: `window` where a layer is
/// "sliding_attention".
std::vector<std::int64_t> read_windows(HfConfig& config, std::int64_t layers, std::int64_t window,
                                       const std::function<bool(std::int64_t)>& sliding_by_default);
/// Qwen 2, 2.5 and 3: the window counts only with use_sliding_window, from layer max_window_layers
/// on.
void read_qwen_windows(HfConfig& config, DecoderSpec& spec, std::int64_t max_window_layers);
/// "partial_rotary_factor" at the top level or within "rope_scaling" or "rope_parameters": how much
/// of a head turns.
void read_partial_rotary(HfConfig& config, DecoderSpec& spec, double fallback);
bool read_tied(HfConfig& config, bool fallback);

}  // namespace foreshard
