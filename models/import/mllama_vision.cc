#include <cmath>

#include "models/import/mllama.h"

namespace foreshard {
namespace {

ModuleId add_tile_embedding(ModelBuilder& b, ModuleId tower, const std::string& name,
                            const MllamaVision& v) {
  const ModuleId id = b.add_module(tower, name, "MllamaPrecomputedAspectRatioEmbedding");
  const ParameterId gate = b.add_parameter(id, "gate", {1});
  const ModuleId table = b.embedding(id, "embedding", v.ratios + 1, v.tiles * v.hidden);
  Program p(b, id, {"hidden_states", "aspect_ratio_ids"});
  p.reshape(p.call(table, {"aspect_ratio_ids"}), {-1, v.tiles, 1, v.hidden}, "embeddings");
  p.mul("embeddings", p.op(Function::kTanh, {p.parameter(gate)}), "embeddings");
  p.returns({p.add("hidden_states", "embeddings")});
  return id;
}

ModuleId add_positions(ModelBuilder& b, ModuleId tower, const MllamaVision& v) {
  const ModuleId id =
      b.add_module(tower, "gated_positional_embedding", "MllamaPrecomputedPositionEmbedding");
  const ParameterId gate = b.add_parameter(id, "gate", {1});
  const ParameterId embedding = b.add_parameter(id, "embedding", {v.places(), v.hidden});
  const ModuleId table =
      b.embedding(id, "tile_embedding", v.ratios + 1, v.tiles * v.places() * v.hidden);
  Program p(b, id, {"hidden_states", "aspect_ratio_ids"});
  const auto opening = [&] { return p.op(Function::kTanh, {p.parameter(gate)}); };
  p.mul(p.add_scalar(p.op(Function::kNeg, {opening()}), 1.0), p.parameter(embedding),
        "gated_position_embedding");
  p.add("hidden_states", p.view("gated_position_embedding", {1, 1, v.places(), v.hidden}),
        "hidden_states");
  p.reshape(p.call(table, {"aspect_ratio_ids"}), {-1, v.tiles, v.places(), v.hidden},
            "tile_position_embedding");
  p.mul(opening(), "tile_position_embedding", "gated_tile_position_embedding");
  p.returns({p.add("hidden_states", "gated_tile_position_embedding")});
  return id;
}

ModuleId add_block(ModelBuilder& b, ModuleId list, std::int64_t layer, const MllamaVision& v,
                   bool gated) {
  const ModuleId id = b.add_module(list, std::to_string(layer), "MllamaVisionEncoderLayer");
  ParameterId attention_gate, ffn_gate;
  if (gated) {
    attention_gate = b.add_parameter(id, "gate_attn", {1});
    ffn_gate = b.add_parameter(id, "gate_ffn", {1});
  }
  AttentionSpec a;
  a.class_name = "MllamaVisionAttention";
  a.hidden = v.hidden;
  a.heads = a.kv_heads = v.heads;
  a.head_dim = v.hidden / v.heads;
  a.call.causal = false;
  a.call.scale = 1.0 / std::sqrt(static_cast<double>(a.head_dim));
  a.takes_mask = true;
  const ModuleId attention = attention_module(b, id, "self_attn", a);
  const ModuleId mlp =
      plain_mlp(b, id, "mlp", "MllamaVisionMLP", "fc1", "fc2", v.hidden, v.ffn, v.activation);
  const ModuleId before = b.layer_norm(id, "input_layernorm", v.hidden, true, v.eps);
  const ModuleId after = b.layer_norm(id, "post_attention_layernorm", v.hidden, true, v.eps);
  Program p(b, id, {"hidden_states", "attention_mask"});
  const auto gate = [&](ParameterId parameter) {
    if (gated)
      p.mul(p.op(Function::kTanh, {p.parameter(parameter)}), "hidden_states", "hidden_states");
  };
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(before, {"hidden_states"}, "hidden_states");
  p.call(attention, {"hidden_states", "attention_mask"}, "hidden_states");
  gate(attention_gate);
  p.add("residual", "hidden_states", "hidden_states");
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(after, {"hidden_states"}, "hidden_states");
  p.call(mlp, {"hidden_states"}, "hidden_states");
  gate(ffn_gate);
  p.returns({p.add("residual", "hidden_states")});
  return id;
}

std::string state(std::int64_t layer) { return "state_" + std::to_string(layer); }

/// Returns the last state and those after the layers `kept`.
ModuleId add_encoder(Multimodal& m, ModuleId tower, const std::string& name, std::int64_t layers,
                     const MllamaVision& v, bool gated, const std::vector<std::int64_t>& kept) {
  ModelBuilder& b = m.b;
  const ModuleId id = b.add_module(tower, name, "MllamaVisionEncoder");
  const ModuleId list = b.add_module(id, "layers", "ModuleList");
  b.model().at(list).has_forward = false;
  std::vector<ModuleId> blocks;
  for (std::int64_t i = 0; i < layers; ++i) blocks.push_back(add_block(b, list, i, v, gated));
  m.vision_blocks.insert(m.vision_blocks.end(), blocks.begin(), blocks.end());
  Program p(b, id, {"hidden_states", "attention_mask"});
  std::vector<std::string> outputs{"hidden_states"};
  for (std::int64_t i = 0; i < layers; ++i) {
    p.call(blocks[static_cast<std::size_t>(i)], {"hidden_states", "attention_mask"},
           "hidden_states");
    for (const std::int64_t k : kept) {
      if (k == i) p.op(Function::kAssign, {"hidden_states"}, state(i));
    }
  }
  for (const std::int64_t k : kept) outputs.push_back(state(k));
  p.returns(outputs);
  return id;
}

/// Patches of every tile with class token and positions, [b, tiles, places, hidden].
void embed(Program& p, const MllamaVision& v, ModuleId patches, ParameterId token, ModuleId tiles,
           ModuleId positions) {
  p.call(patches, {"pixel_values"}, "patch_embeds");
  p.transpose(p.view("patch_embeds", {0, 0, -1}), 1, 2, "hidden_states");
  p.reshape("hidden_states", {-1, v.tiles, v.patches(), v.hidden}, "hidden_states");
  p.call(tiles, {"hidden_states", "aspect_ratio_ids"}, "hidden_states");
  p.reshape("hidden_states", {-1, v.patches(), v.hidden}, "hidden_states");
  const Program::Value one = p.view(p.parameter(token), {1, 1, -1});
  p.cat({p.op_ints(Function::kExpandLike, {one, "hidden_states"}, {0}), "hidden_states"}, 1,
        "hidden_states");
  p.reshape("hidden_states", {-1, v.tiles, v.places(), v.hidden}, "hidden_states");
  p.call(positions, {"hidden_states", "aspect_ratio_ids"}, "hidden_states");
}

/// The last state and the kept ones side by side, without the padding.
void join(Program& p, const MllamaVision& v) {
  p.reshape("hidden_states", {-1, v.tiles, v.padded(), v.hidden}, "hidden_states");
  p.slice("hidden_states", 2, 0, v.places(), "hidden_states");
  std::vector<std::string> stacked;
  for (const std::int64_t k : v.features)
    stacked.push_back(p.op_ints(Function::kUnsqueeze, {state(k)}, {-1}));
  p.reshape(p.cat(stacked, -1),
            {-1, v.tiles, v.padded(), v.hidden * static_cast<std::int64_t>(v.features.size())},
            "intermediate");
  p.slice("intermediate", 2, 0, v.places(), "intermediate");
  p.returns({p.cat({"hidden_states", "intermediate"}, -1)});
}

}  // namespace

ModuleId add_mllama_tower(Multimodal& m, const MllamaVision& v) {
  ModelBuilder& b = m.b;
  const ModuleId id = b.add_module(m.model, "vision_model", "MllamaVisionModel");
  const ParameterId token = b.add_parameter(id, "class_embedding", {v.hidden});
  const ModuleId patches =
      patch_convolution(b, id, "patch_embedding", v.channels, v.hidden, v.patch, false);
  const ModuleId positions = add_positions(b, id, v);
  const ModuleId before_tiles = add_tile_embedding(b, id, "pre_tile_positional_embedding", v);
  const ModuleId after_tiles = add_tile_embedding(b, id, "post_tile_positional_embedding", v);
  const ModuleId before = b.layer_norm(id, "layernorm_pre", v.hidden, true, 1e-5);
  const ModuleId after = b.layer_norm(id, "layernorm_post", v.hidden, true, 1e-5);
  const ModuleId local = add_encoder(m, id, "transformer", v.layers, v, false, v.features);
  const ModuleId global = add_encoder(m, id, "global_transformer", v.global_layers, v, true, {});
  Program p(b, id, {"pixel_values", "aspect_ratio_ids", "aspect_ratio_mask"});
  embed(p, v, patches, token, before_tiles, positions);
  p.call(before, {"hidden_states"}, "hidden_states");
  p.op_ints(Function::kPad, {"hidden_states"}, {-2, v.padded() - v.places()}, "hidden_states");
  p.op_ints(Function::kTileMask, {"aspect_ratio_mask", "hidden_states"}, {v.places(), v.padded()},
            "attention_mask");
  p.view("hidden_states", {-1, v.tiles * v.padded(), v.hidden}, "hidden_states");
  std::vector<std::string> states{"hidden_states"};
  for (const std::int64_t k : v.features) states.push_back(state(k));
  p.call_all(local, {"hidden_states", "attention_mask"}, states);
  p.call(after, {"hidden_states"}, "hidden_states");
  p.reshape("hidden_states", {-1, v.tiles, v.padded(), v.hidden}, "hidden_states");
  p.call(after_tiles, {"hidden_states", "aspect_ratio_ids"}, "hidden_states");
  p.reshape("hidden_states", {-1, v.tiles * v.padded(), v.hidden}, "hidden_states");
  p.call(global, {"hidden_states", "attention_mask"}, "hidden_states");
  join(p, v);
  return id;
}

}  // namespace foreshard
