#include <cmath>

#include <fmt/core.h>

#include "models/import/families.h"

namespace foreshard {

DecoderSpec read_decoder(HfConfig& config, const std::string& prefix,
                         const DecoderDefaults& defaults, const char* activation_key,
                         const char* activation) {
  DecoderSpec spec;
  spec.prefix = prefix;
  spec.vocabulary = config.size("vocab_size", defaults.vocabulary, kLargestVocabulary);
  spec.hidden = config.size("hidden_size", defaults.hidden);
  spec.ffn = config.size("intermediate_size", defaults.ffn);
  spec.layers = config.size("num_hidden_layers", defaults.layers, kLargestLayers);
  spec.norm_eps = config.number(defaults.eps_key, defaults.eps, 0, 1);
  spec.activation = read_activation(config, activation_key, activation);
  config.ignore({"max_position_embeddings"});

  AttentionSpec& a = spec.attention;
  a.heads = config.size("num_attention_heads", defaults.heads, 1 << 16);
  if (defaults.kv_nullable) {
    const auto fallback = defaults.kv_heads ? defaults.kv_heads : std::optional(a.heads);
    a.kv_heads = config.optional_size("num_key_value_heads", fallback, 1 << 16).value_or(a.heads);
  } else {
    a.kv_heads = config.size("num_key_value_heads", *defaults.kv_heads, 1 << 16);
  }
  config.require_multiple("num_attention_heads", a.heads, "num_key_value_heads", a.kv_heads);

  std::optional<std::int64_t> head_dim;
  if (defaults.own_head_dim)
    head_dim = config.optional_size("head_dim", defaults.head_dim, 1 << 16);
  if (!head_dim || defaults.hidden_multiple_of_heads) {
    config.require_multiple("hidden_size", spec.hidden, "num_attention_heads", a.heads);
  }
  a.head_dim = head_dim.value_or(std::max<std::int64_t>(1, spec.hidden / a.heads));
  if (a.head_dim % 2 != 0)
    config.problem("head_dim",
                   fmt::format("is {}: rotary embeddings need an even size", a.head_dim));
  a.rotary = a.head_dim;
  a.call.scale = 1.0 / std::sqrt(static_cast<double>(a.head_dim));
  a.call.dropout = config.probability("attention_dropout", 0.0);
  return spec;
}

std::vector<std::int64_t> read_windows(
    HfConfig& config, std::int64_t layers, std::int64_t window,
    const std::function<bool(std::int64_t)>& sliding_by_default) {
  std::vector<std::int64_t> windows;
  const auto types = config.texts("layer_types");
  if (types && static_cast<std::int64_t>(types->size()) != layers) {
    config.problem("layer_types",
                   fmt::format("has {} entries for {} layers", types->size(), layers));
    return {};
  }
  bool any = false;
  for (std::int64_t i = 0; i < layers; ++i) {
    bool sliding = sliding_by_default(i);
    if (types) {
      const std::string& type = (*types)[static_cast<std::size_t>(i)];
      sliding = type == "sliding_attention";
      if (!sliding && type != "full_attention") {
        config.problem("layer_types", fmt::format("entry {} is \"{}\"", i, type),
                       "sliding_attention or full_attention");
        return {};
      }
    }
    windows.push_back(sliding ? window : 0);
    any = any || (sliding && window > 0);
  }
  return any ? windows : std::vector<std::int64_t>{};
}

void read_partial_rotary(HfConfig& config, DecoderSpec& spec, double fallback) {
  double factor = config.number("partial_rotary_factor", fallback, 0.0, 1.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = config.get(key);
    if (!value || !value->is_object() || !value->contains("partial_rotary_factor")) continue;
    if (value->at("partial_rotary_factor").is_number())
      factor = value->at("partial_rotary_factor").get<double>();
  }
  AttentionSpec& a = spec.attention;
  a.rotary = static_cast<std::int64_t>(static_cast<double>(a.head_dim) * factor);
  if (a.rotary < 2 || a.rotary % 2 != 0) {
    config.problem("partial_rotary_factor", "leaves no even rotary width of the head size",
                   "head_dim times it must be even and positive");
  }
}

bool read_tied(HfConfig& config, bool fallback) {
  return config.flag("tie_word_embeddings", fallback);
}

}  // namespace foreshard
