#include "models/import/vision_tower.h"

#include <cmath>

#include <fmt/core.h>

#include "models/import/hf_config.h"

namespace foreshard {
namespace {

std::string prefix_of(const VisionTowerSpec& v) { return v.clip ? "CLIP" : "Siglip"; }

std::string state_after(std::int64_t blocks) { return "hidden_states_" + std::to_string(blocks); }

ModuleId add_embeddings(ModelBuilder& b, ModuleId tower, const VisionTowerSpec& v,
                        ModuleId& patches) {
  const ModuleId id = b.add_module(tower, "embeddings", prefix_of(v) + "VisionEmbeddings");
  ParameterId token;
  if (v.clip) token = b.add_parameter(id, "class_embedding", {v.hidden});
  patches = patch_convolution(b, id, "patch_embedding", v.channels, v.hidden, v.patch, !v.clip);
  const ModuleId positions = b.embedding(id, "position_embedding", v.positions(), v.hidden);
  b.model().at(id).buffers = {{"position_ids", {1, v.positions()}, DType::kInt64, false}};
  Program p(b, id, {"pixel_values"});
  p.call(patches, {"pixel_values"}, "patch_embeds");
  p.transpose(p.view("patch_embeds", {0, 0, -1}), 1, 2, "patch_embeds");
  if (v.clip) {
    const Program::Value one = p.view(p.parameter(token), {1, 1, -1});
    p.cat({p.op_ints(Function::kExpandLike, {one, "patch_embeds"}, {0}, "class_embeds"),
           "patch_embeds"},
          1, "embeddings");
  } else {
    p.op(Function::kAssign, {"patch_embeds"}, "embeddings");
  }
  p.add("embeddings", p.call(positions, {p.op_ints(Function::kBuffer, {}, {0})}), "embeddings");
  p.returns({"embeddings"});
  return id;
}

ModuleId add_attention(ModelBuilder& b, ModuleId block, const VisionTowerSpec& v) {
  AttentionSpec a;
  a.class_name = prefix_of(v) + "Attention";
  a.hidden = v.hidden;
  a.heads = a.kv_heads = v.heads;
  a.head_dim = v.hidden / v.heads;
  a.qkv_bias = a.out_bias = true;
  a.order = {"k_proj", "v_proj", "q_proj", "out_proj"};
  a.o = "out_proj";
  a.call.causal = false;
  a.call.scale = 1.0 / std::sqrt(static_cast<double>(a.head_dim));
  a.call.dropout = v.dropout;
  return attention_module(b, block, "self_attn", a);
}

ModuleId add_block(ModelBuilder& b, ModuleId list, std::int64_t layer, const VisionTowerSpec& v) {
  const ModuleId id = b.add_module(list, std::to_string(layer), prefix_of(v) + "EncoderLayer");
  ModuleId attention, first;
  if (v.clip) attention = add_attention(b, id, v);
  first = b.layer_norm(id, "layer_norm1", v.hidden, true, v.eps);
  if (!v.clip) attention = add_attention(b, id, v);
  const auto mlp = [&] {
    return plain_mlp(b, id, "mlp", prefix_of(v) + "MLP", "fc1", "fc2", v.hidden, v.ffn,
                     v.activation);
  };
  ModuleId feed_forward, second;
  if (v.clip) feed_forward = mlp();
  second = b.layer_norm(id, "layer_norm2", v.hidden, true, v.eps);
  if (!v.clip) feed_forward = mlp();
  Program p(b, id, {"hidden_states"});
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(first, {"hidden_states"}, "hidden_states");
  p.call(attention, {"hidden_states"}, "hidden_states");
  p.add("residual", "hidden_states", "hidden_states");
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(second, {"hidden_states"}, "hidden_states");
  p.call(feed_forward, {"hidden_states"}, "hidden_states");
  p.returns({p.add("residual", "hidden_states")});
  return id;
}

/// nn.MultiheadAttention with one query, all weights asked for: products and softmax op by op.
ModuleId add_pooling_attention(ModelBuilder& b, ModuleId head, const VisionTowerSpec& v) {
  const ModuleId id = b.add_module(head, "attention", "MultiheadAttention");
  const ParameterId weight = b.add_parameter(id, "in_proj_weight", {3 * v.hidden, v.hidden});
  const ParameterId bias = b.add_parameter(id, "in_proj_bias", {3 * v.hidden});
  const ModuleId out = b.linear(id, "out_proj", v.hidden, v.hidden, true);
  const std::int64_t size = v.hidden / v.heads;
  Program p(b, id, {"query", "key"});
  const auto project = [&](const char* x, std::int64_t from, std::int64_t to, const char* name) {
    p.op(Function::kLinear,
         {x, p.slice(p.parameter(weight), 0, from, to), p.slice(p.parameter(bias), 0, from, to)},
         name);
  };
  project("query", 0, v.hidden, "q");
  project("key", v.hidden, 3 * v.hidden, "kv");
  p.ops(Function::kSplit, {"kv"}, {-1, v.hidden, v.hidden}, {"k", "v"});
  for (const char* x : {"q", "k", "v"}) p.transpose(p.view(x, {0, 0, -1, size}), 1, 2, x);
  p.mul_scalar("q", 1.0 / std::sqrt(static_cast<double>(size)), "q");
  p.op_ints(Function::kSoftmax, {p.op(Function::kMatmul, {"q", p.transpose("k", 2, 3)})}, {1},
            "weights");
  p.reshape(p.transpose(p.op(Function::kMatmul, {"weights", "v"}), 1, 2), {0, 0, -1}, "output");
  p.returns({p.call(out, {"output"})});
  return id;
}

ModuleId add_head(ModelBuilder& b, ModuleId tower, const VisionTowerSpec& v) {
  const ModuleId id = b.add_module(tower, "head", "SiglipMultiheadAttentionPoolingHead");
  const ParameterId probe = b.add_parameter(id, "probe", {1, 1, v.hidden});
  const ModuleId attention = add_pooling_attention(b, id, v);
  const ModuleId norm = b.layer_norm(id, "layernorm", v.hidden, true, v.eps);
  const ModuleId mlp =
      plain_mlp(b, id, "mlp", "SiglipMLP", "fc1", "fc2", v.hidden, v.ffn, v.activation);
  Program p(b, id, {"hidden_state"});
  const Program::Value wide =
      p.op_ints(Function::kExpandLike, {p.parameter(probe), "hidden_state"}, {0});
  p.call(attention, {p.op(Function::kContiguous, {wide}), "hidden_state"}, "residual");
  p.call(norm, {"residual"}, "hidden_state");
  p.add("residual", p.call(mlp, {"hidden_state"}), "hidden_state");
  p.returns({p.select("hidden_state", 1, 0)});
  return id;
}

std::vector<std::string> feature_names(const std::vector<std::int64_t>& features) {
  std::vector<std::string> names;
  for (const std::int64_t k : features) names.push_back(state_after(k));
  return names;
}

void write_encoder(ModelBuilder& b, ModuleId encoder, const std::vector<ModuleId>& blocks,
                   const std::vector<std::int64_t>& features) {
  Program p(b, encoder, {"inputs_embeds"});
  p.op(Function::kAssign, {"inputs_embeds"}, "hidden_states");
  const auto keep = [&](std::int64_t done) {
    for (const std::int64_t k : features) {
      if (k != done) continue;
      p.op(Function::kAssign, {"hidden_states"}, state_after(k));
      return;
    }
  };
  keep(0);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    p.call(blocks[i], {"hidden_states"}, "hidden_states");
    keep(static_cast<std::int64_t>(i) + 1);
  }
  std::vector<std::string> outputs = feature_names(features);
  outputs.push_back("hidden_states");
  p.returns(outputs);
}

}  // namespace

VisionTowerSpec read_vision_tower(HfConfig& parent, const std::string& fallback) {
  const bool given = parent.has("vision_config");
  HfConfig config = parent.nested("vision_config");
  VisionTowerSpec v;
  const std::string type =
      config.choice("model_type", fallback, {"clip_vision_model", "siglip_vision_model"});
  v.clip = type == "clip_vision_model";
  // A file without any vision_config means the tower of LLaVA 1.5; one with some keys, the defaults
  // of the tower's type.
  const bool llava = !given && v.clip;
  v.hidden = config.size("hidden_size", llava ? 1024 : 768);
  v.ffn = config.size("intermediate_size", llava ? 4096 : 3072);
  v.layers = config.size("num_hidden_layers", llava ? 24 : 12, kLargestLayers);
  v.heads = config.size("num_attention_heads", llava ? 16 : 12, 1 << 16);
  v.channels = config.size("num_channels", 3);
  v.image = config.side("image_size", llava ? 336 : 224);
  v.patch = config.side("patch_size", llava ? 14 : v.clip ? 32 : 16);
  v.activation = read_activation(config, "hidden_act", v.clip ? "quick_gelu" : "gelu_pytorch_tanh");
  v.eps = config.number("layer_norm_eps", v.clip ? 1e-5 : 1e-6, 0, 1);
  v.dropout = config.probability("attention_dropout", 0.0);
  if (!v.clip) v.head = config.flag("vision_use_head", true);
  config.require_multiple("hidden_size", v.hidden, "num_attention_heads", v.heads);
  if (v.patch > v.image)
    config.problem("patch_size", fmt::format("{} is larger than image_size {}", v.patch, v.image));
  config.ignore({"projection_dim", "vocab_size", "initializer_factor"});
  config.finish();
  return v;
}

VisionTower add_vision_tower(ModelBuilder& b, ModuleId parent, const std::string& name,
                             const VisionTowerSpec& v, const std::vector<std::int64_t>& features) {
  VisionTower t;
  t.module = b.add_module(parent, name, prefix_of(v) + "VisionModel");
  const ModuleId embeddings = add_embeddings(b, t.module, v, t.patches);
  t.extra_units = {embeddings};
  ModuleId before, head;
  if (v.clip) before = b.layer_norm(t.module, "pre_layrnorm", v.hidden, true, v.eps);
  const ModuleId encoder = b.add_module(t.module, "encoder", prefix_of(v) + "Encoder");
  const ModuleId list = b.add_module(encoder, "layers", "ModuleList");
  b.model().at(list).has_forward = false;
  for (std::int64_t i = 0; i < v.layers; ++i) t.blocks.push_back(add_block(b, list, i, v));
  write_encoder(b, encoder, t.blocks, features);
  const ModuleId after = b.layer_norm(t.module, "post_layernorm", v.hidden, true, v.eps);
  if (v.head) {
    head = add_head(b, t.module, v);
    t.extra_units.push_back(head);
  }
  Program p(b, t.module, {"pixel_values"});
  p.call(embeddings, {"pixel_values"}, "hidden_states");
  if (v.clip) p.call(before, {"hidden_states"}, "hidden_states");
  std::vector<std::string> outputs = feature_names(features), states = outputs;
  states.push_back("last_hidden_state");
  p.call_all(encoder, {"hidden_states"}, states);
  if (v.clip) {
    p.call(after, {p.select("last_hidden_state", 1, 0)}, "pooled_output");
  } else {
    p.call(after, {"last_hidden_state"}, "last_hidden_state");
    if (v.head) p.call(head, {"last_hidden_state"}, "pooled_output");
  }
  p.returns(outputs.empty() ? std::vector<std::string>{"last_hidden_state"} : outputs);
  return t;
}

}  // namespace foreshard
