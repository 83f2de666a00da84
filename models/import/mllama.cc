// Llama 3.2 Vision: tiles of an image through two transformers, whose states text tokens attend to
// in some decoder blocks.

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "models/import/families.h"
#include "models/import/mllama.h"

namespace foreshard {
namespace {

// ----------------------------------------------------------------------------------------------
// text

NormedBlock add_norms_and_mlp(ModelBuilder& b, ModuleId block, const DecoderSpec& t,
                              bool norm_first) {
  const auto norm = [&](const char* name) {
    return rms_norm_module(b, block, name, "MllamaTextRMSNorm", t.hidden, t.norm_eps,
                           NormStyle::kLlama);
  };
  NormedBlock parts;
  if (norm_first) parts.input_norm = norm("input_layernorm");
  parts.mlp = gated_mlp(b, block, "mlp", "MllamaTextMLP", t.hidden, t.ffn, false, t.activation);
  if (!norm_first) parts.input_norm = norm("input_layernorm");
  parts.attention_norm = norm("post_attention_layernorm");
  return parts;
}

ModuleId add_self_block(ModelBuilder& b, ModuleId list, std::int64_t layer, const DecoderSpec& t) {
  const ModuleId id = b.add_module(list, std::to_string(layer), "MllamaSelfAttentionDecoderLayer");
  AttentionSpec a = t.attention;
  a.class_name = "MllamaTextSelfAttention";
  a.hidden = t.hidden;
  const ModuleId attention = attention_module(b, id, "self_attn", a);
  const NormedBlock parts = add_norms_and_mlp(b, id, t, false);
  Program p(b, id, {"hidden_states", "cos", "sin"});
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(parts.input_norm, {"hidden_states"}, "hidden_states");
  p.call(attention, {"hidden_states", "cos", "sin"}, "hidden_states");
  p.add("residual", "hidden_states", "hidden_states");
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(parts.attention_norm, {"hidden_states"}, "hidden_states");
  p.call(parts.mlp, {"hidden_states"}, "hidden_states");
  p.returns({p.add("residual", "hidden_states")});
  return id;
}

/// `rows`: image places that one sample has, over all its tiles.
ModuleId add_cross_attention(ModelBuilder& b, ModuleId block, const DecoderSpec& t,
                             std::int64_t rows) {
  const AttentionSpec& a = t.attention;
  const ModuleId id = b.add_module(block, "cross_attn", "MllamaTextCrossAttention");
  const std::int64_t kv = a.kv_heads * a.head_dim;
  const ModuleId q = b.linear(id, "q_proj", t.hidden, a.heads * a.head_dim, false),
                 k = b.linear(id, "k_proj", t.hidden, kv, false);
  const ModuleId v = b.linear(id, "v_proj", t.hidden, kv, false),
                 o = b.linear(id, "o_proj", a.heads * a.head_dim, t.hidden, false);
  const auto norm = [&](const char* name) {
    return rms_norm_module(b, id, name, "MllamaTextRMSNorm", a.head_dim, t.norm_eps,
                           NormStyle::kLlama);
  };
  const ModuleId q_norm = norm("q_norm"), k_norm = norm("k_norm");
  Program p(b, id, {"hidden_states", "cross_attention_states", "attention_mask"});
  p.transpose(p.view(p.call(q, {"hidden_states"}), {0, 0, -1, a.head_dim}), 1, 2, "query_states");
  p.call(q_norm, {"query_states"}, "query_states");
  p.call(k, {"cross_attention_states"}, "key_states");
  p.call(v, {"cross_attention_states"}, "value_states");
  for (const char* x : {"key_states", "value_states"}) {
    p.transpose(p.view(x, {-1, rows, a.kv_heads, a.head_dim}), 1, 2, x);
  }
  p.call(k_norm, {"key_states"}, "key_states");
  AttentionCall call = a.call;
  call.causal = false;
  call.mask = "attention_mask";
  attend(p, call);
  p.returns({p.call(o, {p.reshape("attn_output", {0, 0, -1})})});
  return id;
}

ModuleId add_cross_block(ModelBuilder& b, ModuleId list, std::int64_t layer, const DecoderSpec& t,
                         std::int64_t rows) {
  const ModuleId id = b.add_module(list, std::to_string(layer), "MllamaCrossAttentionDecoderLayer");
  const ParameterId attention_gate = b.add_parameter(id, "cross_attn_attn_gate", {1});
  const ParameterId mlp_gate = b.add_parameter(id, "cross_attn_mlp_gate", {1});
  const ModuleId attention = add_cross_attention(b, id, t, rows);
  const NormedBlock parts = add_norms_and_mlp(b, id, t, true);
  Program p(b, id, {"hidden_states", "cross_attention_states", "cross_attention_mask", "row_mask"});
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(parts.input_norm, {"hidden_states"}, "hidden_states");
  p.call(attention, {"hidden_states", "cross_attention_states", "cross_attention_mask"},
         "hidden_states");
  p.add("residual", p.mul(p.op(Function::kTanh, {p.parameter(attention_gate)}), "hidden_states"),
        "hidden_states");
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(parts.attention_norm, {"hidden_states"}, "hidden_states");
  p.call(parts.mlp, {"hidden_states"}, "hidden_states");
  p.mul(p.select("row_mask", 1, 0), "hidden_states", "hidden_states");
  p.returns(
      {p.add("residual", p.mul(p.op(Function::kTanh, {p.parameter(mlp_gate)}), "hidden_states"))});
  return id;
}

Decoder add_language_model(ModelBuilder& b, ModuleId parent, const DecoderSpec& t,
                           const std::vector<std::int64_t>& cross_layers, std::int64_t rows) {
  Decoder d;
  d.model = b.add_module(parent, "language_model", "MllamaTextModel");
  d.embedding = b.embedding(d.model, "embed_tokens", t.vocabulary + 8,
                            t.hidden);  // Eight rows for image tokens.
  const ModuleId list = b.add_module(d.model, "layers", "ModuleList");
  b.model().at(list).has_forward = false;
  std::vector<bool> cross;
  for (std::int64_t i = 0; i < t.layers; ++i) {
    cross.push_back(std::find(cross_layers.begin(), cross_layers.end(), i) != cross_layers.end());
    d.blocks.push_back(cross.back() ? add_cross_block(b, list, i, t, rows)
                                    : add_self_block(b, list, i, t));
  }
  d.norm = rms_norm_module(b, d.model, "norm", "MllamaTextRMSNorm", t.hidden, t.norm_eps,
                           NormStyle::kLlama);
  const ModuleId rotary =
      rotary_module(b, d.model, "rotary_emb", "MllamaRotaryEmbedding", t.attention.head_dim);
  const std::vector<std::string> states{"cross_attention_states", "cross_attention_mask",
                                        "row_mask"};
  Program p(b, d.model, {"input_ids", states[0], states[1], states[2]});
  p.call(d.embedding, {"input_ids"}, "hidden_states");
  p.op(Function::kPositionIds, {"hidden_states"}, "position_ids");
  p.call_all(rotary, {"hidden_states", "position_ids"}, {"cos", "sin"});
  for (std::size_t i = 0; i < d.blocks.size(); ++i) {
    if (cross[i])
      p.call(d.blocks[i], {"hidden_states", states[0], states[1], states[2]}, "hidden_states");
    else
      p.call(d.blocks[i], {"hidden_states", "cos", "sin"}, "hidden_states");
  }
  p.returns({p.call(d.norm, {"hidden_states"}, "hidden_states")});
  return d;
}

// ----------------------------------------------------------------------------------------------
// keys

MllamaVision read_mllama_vision(HfConfig& parent) {
  HfConfig c = parent.nested("vision_config");
  MllamaVision v;
  v.hidden = c.size("hidden_size", 1280);
  v.ffn = c.size("intermediate_size", 5120);
  v.layers = c.size("num_hidden_layers", 32, kLargestLayers);
  v.global_layers = c.size("num_global_layers", 8, kLargestLayers, 0);
  v.heads = c.size_or("attention_heads", "num_attention_heads", 16, 1 << 16);
  v.channels = c.size("num_channels", 3);
  v.image = c.side("image_size", 448);
  v.patch = c.side("patch_size", 14);
  v.tiles = c.size("max_num_tiles", 4, 1 << 10);
  v.output = c.size("vision_output_dim", 7680);
  v.eps = c.number("norm_eps", 1e-5, 0, 1);
  v.activation = read_activation(c, "hidden_act", "gelu");
  v.features = c.integers("intermediate_layers_indices", 0, kLargestLayers)
                   .value_or(std::vector<std::int64_t>{3, 7, 15, 23, 30});
  const Json* ratios = c.get("supported_aspect_ratios");
  v.ratios = ratios && ratios->is_array() ? static_cast<std::int64_t>(ratios->size()) : 8;
  c.require_multiple("hidden_size", v.hidden, "attention_heads", v.heads);
  if (v.patch > v.image)
    c.problem("patch_size", fmt::format("{} is larger than image_size {}", v.patch, v.image));
  if (!ratios && v.tiles != 4)
    c.problem("max_num_tiles", "must be 4 for the default supported_aspect_ratios",
              "4, or list the ratios");
  for (const std::int64_t i : v.features) {
    if (i >= v.layers)
      c.problem("intermediate_layers_indices", fmt::format("{} of {} layers", i, v.layers));
  }
  if (const std::int64_t width = v.hidden * (1 + static_cast<std::int64_t>(v.features.size()));
      v.output != width) {
    c.problem("vision_output_dim",
              fmt::format("is {}, but the last and {} intermediate states make {}", v.output,
                          v.features.size(), width));
  }
  c.ignore({"model_type"});
  c.finish();
  return v;
}

DecoderSpec read_text(HfConfig& c, std::vector<std::int64_t>& cross_layers) {
  DecoderDefaults defaults{128256, 4096, 14336, 40, 32, 8, false, {}, 1e-5, true};
  DecoderSpec spec = read_decoder(c, "Mllama", defaults);
  spec.attention.call.dropout = c.probability("dropout", 0.0);
  cross_layers = c.integers("cross_attention_layers", 0, kLargestLayers)
                     .value_or(std::vector<std::int64_t>{3, 8, 13, 18, 23, 28, 33, 38});
  c.ignore({"model_type", "tie_word_embeddings"});
  c.finish();
  return spec;
}

ModelArgument index_argument(const std::string& name, std::vector<std::int64_t> shape,
                             std::int64_t values) {
  ModelArgument a = token_argument(name, values);
  a.shape = std::move(shape);
  return a;
}

}  // namespace

Model import_mllama(HfConfig& config) {
  const MllamaVision vision = read_mllama_vision(config);
  std::vector<std::int64_t> cross_layers;
  HfConfig text_config = config.nested("text_config");
  const DecoderSpec text = read_text(text_config, cross_layers);
  config.ignore({"image_token_index", "image_token_id", "tie_word_embeddings"});
  config.finish();
  if (!config.usable()) return {};
  Multimodal m("MllamaForConditionalGeneration", "MllamaModel");
  const ModuleId tower = add_mllama_tower(m, vision);
  m.decoder = add_language_model(m.b, m.model, text, cross_layers, vision.tiles * vision.places());
  const ModuleId projector =
      m.b.linear(m.model, "multi_modal_projector", vision.output, text.hidden, true);
  Program p(m.b, m.model,
            {"input_ids", "pixel_values", "aspect_ratio_ids", "aspect_ratio_mask",
             "cross_attention_mask"});
  p.call(tower, {"pixel_values", "aspect_ratio_ids", "aspect_ratio_mask"},
         "cross_attention_states");
  p.reshape(p.call(projector, {"cross_attention_states"}), {-1, vision.places(), text.hidden},
            "cross_attention_states");
  p.ops(Function::kCrossMask, {"cross_attention_mask", "cross_attention_states"}, {vision.places()},
        {"cross_attention_mask", "row_mask"});
  p.returns({p.call(m.decoder.model,
                    {"input_ids", "cross_attention_states", "cross_attention_mask", "row_mask"},
                    "hidden_states")});
  m.b.model().sample = fmt::format("1 image of {0} tiles of {1} x {1}, beside the tokens",
                                   vision.tiles, vision.image);
  return m.finish(text.vocabulary, false,
                  {pixel_argument({-vision.tiles, vision.channels, vision.image, vision.image}),
                   index_argument("aspect_ratio_ids", {-1, 1}, vision.ratios + 1),
                   index_argument("aspect_ratio_mask", {-1, vision.tiles}, 2),
                   index_argument("cross_attention_mask", {-1, 0, 1, vision.tiles}, 2)});
}

}  // namespace foreshard
