// GPT-NeoX: fused query_key_value with bias, two LayerNorms, parallel residual, partial rotary.

#include <cmath>

#include "models/import/families.h"

namespace foreshard {
namespace {

struct Neox {
  std::int64_t vocabulary, hidden, layers, heads, ffn, rotary;
  Activation activation;
  double attention_dropout, hidden_dropout, eps;
  bool parallel, attention_bias;
};

ModuleId add_attention(ModelBuilder& b, ModuleId block, const Neox& n) {
  const std::int64_t head = n.hidden / n.heads;
  const ModuleId id = b.add_module(block, "attention", "GPTNeoXAttention");
  const ModuleId qkv = b.linear(id, "query_key_value", n.hidden, 3 * n.hidden, n.attention_bias);
  const ModuleId dense = b.linear(id, "dense", n.hidden, n.hidden, n.attention_bias);
  Program p(b, id, {"hidden_states", "cos", "sin"});
  p.transpose(p.view(p.call(qkv, {"hidden_states"}), {0, 0, -1, 3 * head}), 1, 2, "qkv");
  p.ops(Function::kChunk, {"qkv"}, {-1, 3}, {"query_states", "key_states", "value_states"});
  apply_rotary(p, "query_states", "key_states", "cos", "sin", n.rotary, RotaryCat::kSumThenCat);
  AttentionCall call;
  call.scale = 1.0 / std::sqrt(static_cast<double>(head));
  call.dropout = n.attention_dropout;
  attend(p, call);
  p.reshape("attn_output", {0, 0, -1}, "attn_output");
  p.call(dense, {"attn_output"}, "attn_output");
  p.returns({"attn_output"});
  return id;
}

ModuleId add_block(ModelBuilder& b, ModuleId list, const Neox& n, std::int64_t layer) {
  const ModuleId id = b.add_module(list, std::to_string(layer), "GPTNeoXLayer");
  const ModuleId first = b.layer_norm(id, "input_layernorm", n.hidden, true, n.eps);
  const ModuleId second = b.layer_norm(id, "post_attention_layernorm", n.hidden, true, n.eps);
  const ModuleId attention = add_attention(b, id, n);
  const ModuleId mlp = plain_mlp(b, id, "mlp", "GPTNeoXMLP", "dense_h_to_4h", "dense_4h_to_h",
                                 n.hidden, n.ffn, n.activation);
  Program p(b, id, {"hidden_states", "cos", "sin"});
  p.call(attention, {p.call(first, {"hidden_states"}), "cos", "sin"}, "attn_output");
  if (n.hidden_dropout > 0) p.dropout("attn_output", n.hidden_dropout, "attn_output");
  if (!n.parallel) p.add("attn_output", "hidden_states", "attn_output");
  p.call(mlp, {p.call(second, {n.parallel ? "hidden_states" : "attn_output"})}, "mlp_output");
  if (n.hidden_dropout > 0) p.dropout("mlp_output", n.hidden_dropout, "mlp_output");
  if (n.parallel) {
    p.add(p.add("mlp_output", "attn_output"), "hidden_states", "hidden_states");
  } else {
    p.add("mlp_output", "attn_output", "hidden_states");
  }
  p.returns({"hidden_states"});
  return id;
}

Model build(const Neox& n, bool tied) {
  ModelBuilder b("GPTNeoXForCausalLM");
  const ModuleId model = b.add_module(b.root(), "gpt_neox", "GPTNeoXModel");
  const ModuleId embed = b.embedding(model, "embed_in", n.vocabulary, n.hidden);
  const ModuleId list = b.add_module(model, "layers", "ModuleList");
  b.model().at(list).has_forward = false;
  std::vector<ModuleId> blocks;
  for (std::int64_t i = 0; i < n.layers; ++i) blocks.push_back(add_block(b, list, n, i));
  const ModuleId norm = b.layer_norm(model, "final_layer_norm", n.hidden, true, n.eps);
  const ModuleId rotary = rotary_module(b, model, "rotary_emb", "GPTNeoXRotaryEmbedding", n.rotary);
  const ModuleId head = b.linear(b.root(), "lm_head", n.hidden, n.vocabulary, false);

  Program p(b, model, {"input_ids"});
  p.call(embed, {"input_ids"}, "inputs_embeds");
  if (n.hidden_dropout > 0) {
    p.dropout("inputs_embeds", n.hidden_dropout, "hidden_states");
  } else {
    p.op(Function::kAssign, {"inputs_embeds"}, "hidden_states");
  }
  p.op(Function::kPositionIds, {"inputs_embeds"}, "position_ids");
  p.call_all(rotary, {"hidden_states", "position_ids"}, {"cos", "sin"});
  for (const ModuleId block : blocks)
    p.call(block, {"hidden_states", "cos", "sin"}, "hidden_states");
  p.call(norm, {"hidden_states"}, "hidden_states");
  p.returns({"hidden_states"});
  return finish_causal(b, {model, embed, norm, blocks}, head, n.vocabulary, tied);
}

}  // namespace

Model import_gpt_neox(HfConfig& config) {
  Neox n;
  n.vocabulary = config.size("vocab_size", 50432, kLargestVocabulary);
  n.hidden = config.size("hidden_size", 6144);
  n.layers = config.size("num_hidden_layers", 44, kLargestLayers);
  n.heads = config.size("num_attention_heads", 64, 1 << 16);
  n.ffn = config.size("intermediate_size", 24576);
  n.activation = read_activation(config, "hidden_act", "gelu");
  n.attention_dropout = config.probability("attention_dropout", 0.0);
  n.hidden_dropout = config.probability("hidden_dropout", 0.0);
  n.eps = config.number("layer_norm_eps", 1e-5, 0, 1);
  n.parallel = config.flag("use_parallel_residual", true);
  n.attention_bias = config.flag("attention_bias", true);
  config.require_multiple("hidden_size", n.hidden, "num_attention_heads", n.heads);
  const double part = config.number("rotary_pct", 0.25, 0.0, 1.0);
  n.rotary = static_cast<std::int64_t>(static_cast<double>(n.hidden / n.heads) * part);
  if (n.rotary < 2 || n.rotary % 2 != 0)
    config.problem("rotary_pct", "leaves no even rotary width of the head size");
  config.ignore({"max_position_embeddings", "rotary_emb_base", "classifier_dropout", "is_decoder"});
  const bool tied = read_tied(config, false);
  config.finish();
  if (!config.usable()) return {};
  return build(n, tied);
}

}  // namespace foreshard
