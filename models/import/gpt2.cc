// GPT-2: Conv1D projections ([in, out] weights), learned positions, LayerNorm with bias, tied head.

#include <cmath>

#include "models/import/families.h"

namespace foreshard {
namespace {

struct Gpt2 {
  std::int64_t vocabulary, positions, hidden, layers, heads, ffn;
  Activation activation;
  double residual_dropout, embedding_dropout, attention_dropout, eps;
  bool scaled, scaled_by_layer;
};

ModuleId conv1d(ModelBuilder& b, ModuleId parent, const std::string& name, std::int64_t in,
                std::int64_t out) {
  const ModuleId id = b.add_module(parent, name, "Conv1D");
  const ParameterId weight = b.add_parameter(id, "weight", {in, out});
  const ParameterId bias = b.add_parameter(id, "bias", {out});
  Program p(b, id, {"x"});
  p.op(Function::kConv1D, {"x"}, "x");
  p.last().parameters = {weight, bias};
  p.returns({"x"});
  return id;
}

ModuleId add_attention(ModelBuilder& b, ModuleId block, const Gpt2& g, std::int64_t layer) {
  const std::int64_t head_dim = g.hidden / g.heads;
  const ModuleId id = b.add_module(block, "attn", "GPT2Attention");
  const ModuleId qkv = conv1d(b, id, "c_attn", g.hidden, 3 * g.hidden);
  const ModuleId out = conv1d(b, id, "c_proj", g.hidden, g.hidden);
  Program p(b, id, {"hidden_states", "attention_mask"});
  p.ops(Function::kSplit, {p.call(qkv, {"hidden_states"})}, {2, g.hidden, g.hidden, g.hidden},
        {"query_states", "key_states", "value_states"});
  for (const char* x : {"key_states", "value_states", "query_states"})
    p.transpose(p.view(x, {0, 0, -1, head_dim}), 1, 2, x);
  AttentionCall call;
  call.scale = (g.scaled ? 1.0 / std::sqrt(static_cast<double>(head_dim)) : 1.0) /
               (g.scaled_by_layer ? static_cast<double>(layer + 1) : 1.0);
  call.dropout = g.attention_dropout;
  call.mask = "attention_mask";
  attend(p, call);
  p.reshape("attn_output", {0, 0, -1}, "attn_output");
  p.call(out, {"attn_output"}, "attn_output");
  p.dropout("attn_output", g.residual_dropout, "attn_output");
  p.returns({"attn_output"});
  return id;
}

ModuleId add_mlp(ModelBuilder& b, ModuleId block, const Gpt2& g) {
  const ModuleId id = b.add_module(block, "mlp", "GPT2MLP");
  const ModuleId in = conv1d(b, id, "c_fc", g.hidden, g.ffn);
  const ModuleId out = conv1d(b, id, "c_proj", g.ffn, g.hidden);
  Program p(b, id, {"hidden_states"});
  p.call(in, {"hidden_states"}, "hidden_states");
  activate(p, g.activation, "hidden_states", "hidden_states");
  p.call(out, {"hidden_states"}, "hidden_states");
  p.dropout("hidden_states", g.residual_dropout, "hidden_states");
  p.returns({"hidden_states"});
  return id;
}

ModuleId add_block(ModelBuilder& b, ModuleId list, const Gpt2& g, std::int64_t layer) {
  const ModuleId id = b.add_module(list, std::to_string(layer), "GPT2Block");
  const ModuleId ln_1 = b.layer_norm(id, "ln_1", g.hidden, true, g.eps);
  const ModuleId attention = add_attention(b, id, g, layer);
  const ModuleId ln_2 = b.layer_norm(id, "ln_2", g.hidden, true, g.eps);
  const ModuleId mlp = add_mlp(b, id, g);
  Program p(b, id,
            {"hidden_states", "attention_mask",
             "position_ids"});  // Positions unused: a checkpoint keeps them.
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(ln_1, {"hidden_states"}, "hidden_states");
  p.call(attention, {"hidden_states", "attention_mask"}, "attn_output");
  p.add("attn_output", "residual", "hidden_states");
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(ln_2, {"hidden_states"}, "hidden_states");
  p.call(mlp, {"hidden_states"}, "feed_forward_hidden_states");
  p.add("residual", "feed_forward_hidden_states", "hidden_states");
  p.returns({"hidden_states"});
  return id;
}

Model build(const Gpt2& g, bool tied) {
  ModelBuilder b("GPT2LMHeadModel");
  const ModuleId model = b.add_module(b.root(), "transformer", "GPT2Model");
  const ModuleId wte = b.embedding(model, "wte", g.vocabulary, g.hidden);
  const ModuleId wpe = b.embedding(model, "wpe", g.positions, g.hidden);
  const ModuleId list = b.add_module(model, "h", "ModuleList");
  b.model().at(list).has_forward = false;
  std::vector<ModuleId> blocks;
  for (std::int64_t i = 0; i < g.layers; ++i) blocks.push_back(add_block(b, list, g, i));
  const ModuleId ln_f = b.layer_norm(model, "ln_f", g.hidden, true, g.eps);
  const ModuleId head = b.linear(b.root(), "lm_head", g.hidden, g.vocabulary, false);

  Program p(b, model, {"input_ids"});
  for (const char* name :
       {"position_ids", "inputs_embeds", "position_embeds", "hidden_states", "causal_mask"}) {
    b.value(model, name);  // Arguments, then locals in the order of the library's code.
  }
  p.call(wte, {"input_ids"}, "inputs_embeds");
  p.op(Function::kPositionIds, {"inputs_embeds"}, "position_ids");
  p.call(wpe, {"position_ids"}, "position_embeds");
  p.add("inputs_embeds", "position_embeds", "hidden_states");
  p.op_ints(Function::kCausalMask, {"inputs_embeds", "position_ids"}, {0, 0}, "causal_mask");
  p.last().dtype = DType::kBool;
  if (g.embedding_dropout > 0) p.dropout("hidden_states", g.embedding_dropout, "hidden_states");
  for (const ModuleId block : blocks)
    p.call(block, {"hidden_states", "causal_mask", "position_ids"}, "hidden_states");
  p.call(ln_f, {"hidden_states"}, "hidden_states");
  p.returns({"hidden_states"});
  b.model().longest_sequence = g.positions;
  Model whole = finish_causal(b, {model, wte, ln_f, blocks}, head, g.vocabulary, tied);
  whole.roles.embeddings = {wte, wpe};
  return whole;
}

}  // namespace

Model import_gpt2(HfConfig& config) {
  Gpt2 g;
  g.vocabulary = config.size("vocab_size", 50257, kLargestVocabulary);
  g.positions = config.size_or("n_positions", "max_position_embeddings", 1024, kLargestVocabulary);
  g.hidden = config.size_or("n_embd", "hidden_size", 768);
  g.layers = config.size_or("n_layer", "num_hidden_layers", 12, kLargestLayers);
  g.heads = config.size_or("n_head", "num_attention_heads", 12, 1 << 16);
  g.ffn = config.optional_size("n_inner", std::nullopt).value_or(4 * g.hidden);
  g.activation = read_activation(config, "activation_function", "gelu_new");
  g.residual_dropout = config.probability("resid_pdrop", 0.1);
  g.embedding_dropout = config.probability("embd_pdrop", 0.1);
  g.attention_dropout = config.probability("attn_pdrop", 0.1);
  g.eps = config.number("layer_norm_epsilon", 1e-5, 0, 1);
  g.scaled = config.flag("scale_attn_weights", true);
  g.scaled_by_layer = config.flag("scale_attn_by_inverse_layer_idx", false);
  config.flag("reorder_and_upcast_attn", false);  // Only the eager path looks at it.
  config.require_multiple("n_embd", g.hidden, "n_head", g.heads);
  if (config.flag("add_cross_attention", false)) {
    config.problem("add_cross_attention",
                   "is true: a decoder of an encoder-decoder pair is not modelled", "false");
  }
  config.ignore({"summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
                 "summary_first_dropout"});
  const bool tied = read_tied(config, true);
  config.finish();
  if (!config.usable()) return {};
  return build(g, tied);
}

}  // namespace foreshard
