// ViT with a classification head; images of the config's size.

#include <cmath>

#include <fmt/core.h>

#include "models/import/families.h"

namespace foreshard {
namespace {

struct Vit {
  std::int64_t hidden, layers, heads, ffn, image, patch, channels, labels;
  Activation activation;
  double dropout, attention_dropout, eps;
  bool qkv_bias;
};

ModuleId add_embeddings(ModelBuilder& b, ModuleId model, const Vit& v) {
  const std::int64_t side = v.image / v.patch;
  const ModuleId id = b.add_module(model, "embeddings", "ViTEmbeddings");
  const ParameterId token = b.add_parameter(id, "cls_token", {1, 1, v.hidden});
  const ParameterId positions =
      b.add_parameter(id, "position_embeddings", {1, side * side + 1, v.hidden});
  const ModuleId patches = b.add_module(id, "patch_embeddings", "ViTPatchEmbeddings");
  const ModuleId projection =
      patch_convolution(b, patches, "projection", v.channels, v.hidden, v.patch, true);
  Program f(b, patches, {"pixel_values"});
  f.returns({f.transpose(f.view(f.call(projection, {"pixel_values"}), {0, 0, -1}), 1, 2)});

  Program p(b, id, {"pixel_values"});
  p.call(patches, {"pixel_values"}, "embeddings");
  // One class token for each image.
  p.op_ints(Function::kExpandLike, {p.parameter(token), "embeddings"}, {0}, "cls_tokens");
  p.cat({"cls_tokens", "embeddings"}, 1, "embeddings");
  p.add("embeddings", p.parameter(positions), "embeddings");
  p.returns({p.dropout("embeddings", v.dropout)});
  return id;
}

ModuleId add_block(ModelBuilder& b, ModuleId list, std::int64_t layer, const Vit& v) {
  const ModuleId id = b.add_module(list, std::to_string(layer), "ViTLayer");
  AttentionSpec a;
  a.class_name = "ViTAttention";
  a.hidden = v.hidden;
  a.heads = a.kv_heads = v.heads;
  a.head_dim = v.hidden / v.heads;
  a.qkv_bias = v.qkv_bias;
  a.out_bias = true;
  a.call.causal = false;
  a.call.scale = 1.0 / std::sqrt(static_cast<double>(a.head_dim));
  a.call.dropout = v.attention_dropout;
  const ModuleId attention = attention_module(b, id, "attention", a);
  const ModuleId before = b.layer_norm(id, "layernorm_before", v.hidden, true, v.eps);
  const ModuleId after = b.layer_norm(id, "layernorm_after", v.hidden, true, v.eps);
  const ModuleId mlp =
      plain_mlp(b, id, "mlp", "ViTMLP", "fc1", "fc2", v.hidden, v.ffn, v.activation);
  Program p(b, id, {"hidden_states"});
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(before, {"hidden_states"}, "hidden_states");
  p.call(attention, {"hidden_states"}, "hidden_states");
  p.add(p.dropout("hidden_states", v.dropout), "residual", "hidden_states");
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(after, {"hidden_states"}, "hidden_states");
  p.call(mlp, {"hidden_states"}, "hidden_states");
  p.add(p.dropout("hidden_states", v.dropout), "residual", "hidden_states");
  p.returns({"hidden_states"});
  return id;
}

Model build(const Vit& v) {
  ModelBuilder b("ViTForImageClassification");
  const ModuleId model = b.add_module(b.root(), "vit", "ViTModel");
  const ModuleId embeddings = add_embeddings(b, model, v);
  const ModuleId list = b.add_module(model, "layers", "ModuleList");
  b.model().at(list).has_forward = false;
  std::vector<ModuleId> blocks;
  for (std::int64_t i = 0; i < v.layers; ++i) blocks.push_back(add_block(b, list, i, v));
  const ModuleId norm = b.layer_norm(model, "layernorm", v.hidden, true, v.eps);
  Program m(b, model, {"pixel_values"});
  m.call(embeddings, {"pixel_values"}, "hidden_states");
  for (const ModuleId block : blocks) m.call(block, {"hidden_states"}, "hidden_states");
  m.returns({m.call(norm, {"hidden_states"}, "sequence_output")});
  const ModuleId classifier = b.linear(b.root(), "classifier", v.hidden, v.labels, true);
  Program p(b, b.root(), {"pixel_values"});
  p.call(model, {"pixel_values"}, "sequence_output");
  p.select("sequence_output", 1, 0, "pooled_output");
  p.returns({p.call(classifier, {"pooled_output"}, "logits")});

  b.model().architecture = "ViTForImageClassification";
  b.model().classes = v.labels;
  b.model().sample = fmt::format("1 image of {0} x {0}", v.image);
  b.model().arguments = {pixel_argument({-1, v.channels, v.image, v.image})};
  b.model().roles = {
      blocks, {b.model().find_module("vit.embeddings.patch_embeddings")}, {norm}, {embeddings}};
  return b.take();
}

}  // namespace

Model import_vit_classifier(HfConfig& config) {
  Vit v;
  v.hidden = config.size("hidden_size", 768);
  v.layers = config.size("num_hidden_layers", 12, kLargestLayers);
  v.heads = config.size("num_attention_heads", 12, 1 << 16);
  v.ffn = config.size("intermediate_size", 3072);
  v.image = config.side("image_size", 224);
  v.patch = config.side("patch_size", 16);
  v.channels = config.size("num_channels", 3);
  v.activation = read_activation(config, "hidden_act", "gelu");
  v.dropout = config.probability("hidden_dropout_prob", 0.0);
  v.attention_dropout = config.probability("attention_probs_dropout_prob", 0.0);
  v.eps = config.number("layer_norm_eps", 1e-12, 0, 1);
  v.qkv_bias = config.flag("qkv_bias", true);
  v.labels = config.labels();
  config.require_multiple("hidden_size", v.hidden, "num_attention_heads", v.heads);
  if (v.patch > v.image)
    config.problem("patch_size", fmt::format("{} is larger than image_size {}", v.patch, v.image));
  config.ignore({"encoder_stride", "pooler_output_size", "pooler_act"});
  config.finish();
  if (!config.usable()) return {};
  return build(v);
}

}  // namespace foreshard
