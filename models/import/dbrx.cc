// DBRX: fused Wqkv with clamping, LayerNorm without bias, experts as two-dimensional tensors that a
// loop visits.

#include <algorithm>
#include <cmath>

#include "models/import/families.h"

namespace foreshard {
namespace {

struct Dbrx {
  std::int64_t vocabulary, hidden, heads, kv_heads, layers, ffn, experts, top_k;
  std::optional<double> clip, norm_power;
  Activation activation;
  double attention_dropout, residual_dropout, embedding_dropout, jitter;
};

ModuleId add_attention(ModelBuilder& b, ModuleId parent, const Dbrx& d) {
  const std::int64_t head = d.hidden / d.heads, kv = d.kv_heads * head;
  const ModuleId id = b.add_module(parent, "attn", "DbrxAttention");
  const ModuleId qkv = b.linear(id, "Wqkv", d.hidden, d.hidden + 2 * kv, false);
  const ModuleId out = b.linear(id, "out_proj", d.hidden, d.hidden, false);
  Program p(b, id, {"hidden_states", "cos", "sin"});
  p.call(qkv, {"hidden_states"}, "qkv_states");
  if (d.clip) {
    p.op(Function::kClamp, {"qkv_states"}, "qkv_states");
    p.last().floats = {-*d.clip, *d.clip};
  }
  p.ops(Function::kSplit, {"qkv_states"}, {2, d.hidden, kv, kv},
        {"query_states", "key_states", "value_states"});
  for (const char* x : {"query_states", "key_states", "value_states"})
    p.transpose(p.view(x, {0, 0, -1, head}), 1, 2, x);
  apply_rotary(p, "query_states", "key_states", "cos", "sin", head, RotaryCat::kNever);
  AttentionCall call;
  call.scale = 1.0 / std::sqrt(static_cast<double>(head));
  call.dropout = d.attention_dropout;
  attend(p, call);
  p.reshape("attn_output", {0, 0, -1}, "attn_output");
  p.returns({p.call(out, {"attn_output"})});
  return id;
}

ModuleId add_norm_attention_norm(ModelBuilder& b, ModuleId block, const Dbrx& d) {
  const ModuleId id = b.add_module(block, "norm_attn_norm", "DbrxNormAttentionNorm");
  const ModuleId first = b.layer_norm(id, "norm_1", d.hidden, false, 1e-5);
  const ModuleId attention = add_attention(b, id, d);
  const ModuleId second = b.layer_norm(id, "norm_2", d.hidden, false, 1e-5);
  Program p(b, id, {"hidden_states", "cos", "sin"});
  p.op(Function::kAssign, {"hidden_states"}, "residual_states");
  p.call(first, {"hidden_states"}, "hidden_states");
  p.call(attention, {"hidden_states", "cos", "sin"}, "hidden_states");
  p.add(p.dropout("hidden_states", d.residual_dropout), "residual_states", "hidden_states");
  p.op(Function::kAssign, {"hidden_states"}, "residual_states");
  p.call(second, {"hidden_states"}, "hidden_states");
  p.returns({"residual_states", "hidden_states"});
  return id;
}

ModuleId add_experts(ModelBuilder& b, ModuleId ffn, const Dbrx& d) {
  const ModuleId id = b.add_module(ffn, "experts", "DbrxExperts");
  const ModuleId mlp = b.add_module(id, "mlp", "DbrxExpertGLU");
  std::vector<ParameterId> weights;
  for (const char* name : {"w1", "v1", "w2"})
    weights.push_back(b.add_parameter(mlp, name, {d.experts * d.ffn, d.hidden}));
  Program m(b, mlp, {"x", "top_k_index", "top_k_weights"});
  m.op_ints(Function::kLoopedExperts, {"x", "top_k_weights", "top_k_index"},
            {d.experts, d.top_k, static_cast<std::int64_t>(d.activation)}, "next_states");
  m.last().parameters = weights;
  m.returns({"next_states"});
  Program p(b, id, {"x", "top_k_index", "top_k_weights"});
  p.reshape("x", {-1, d.hidden}, "hidden_states");
  p.call(mlp, {"hidden_states", "top_k_index", "top_k_weights"}, "next_states");
  p.returns({p.op(Function::kViewLike, {"next_states", "x"})});
  return id;
}

ModuleId add_ffn(ModelBuilder& b, ModuleId block, const Dbrx& d) {
  const ModuleId id = b.add_module(block, "ffn", "DbrxFFN");
  const ModuleId router = b.add_module(id, "router", "DbrxRouter");
  const ModuleId layer = b.linear(router, "layer", d.hidden, d.experts, false);
  Program r(b, router, {"x"});
  if (d.jitter > 0)
    r.scalar(Function::kJitter, "x", d.jitter, "x");  // In place: the experts see it too.
  r.view("x", {-1, d.hidden}, "hidden_states");
  r.call(layer, {"hidden_states"}, "router_logits");
  r.returns({"router_logits", "x"});
  const ModuleId experts = add_experts(b, id, d);
  Program p(b, id, {"hidden_states"});
  p.call_all(router, {"hidden_states"}, {"router_logits", "hidden_states"});
  p.op_ints(Function::kSoftmax, {"router_logits"}, {1}, "router_probs");
  p.ops(Function::kTopK, {"router_probs"}, {d.top_k}, {"top_k_weights", "top_k_index"});
  if (d.norm_power) {
    const Program::Value norm = p.scalar(Function::kVectorNorm, "top_k_weights", *d.norm_power);
    p.op(Function::kDiv, {"top_k_weights", norm}, "top_k_weights");
  }
  p.returns({p.call(experts, {"hidden_states", "top_k_index", "top_k_weights"})});
  return id;
}

ModuleId add_block(ModelBuilder& b, ModuleId list, std::int64_t layer, const Dbrx& d) {
  const ModuleId id = b.add_module(list, std::to_string(layer), "DbrxBlock");
  const ModuleId attention = add_norm_attention_norm(b, id, d);
  const ModuleId ffn = add_ffn(b, id, d);
  Program p(b, id, {"hidden_states", "cos", "sin"});
  p.call_all(attention, {"hidden_states", "cos", "sin"}, {"resid_states", "hidden_states"});
  p.call(ffn, {"hidden_states"}, "hidden_states");
  p.add("resid_states", p.dropout("hidden_states", d.residual_dropout), "hidden_states");
  p.returns({"hidden_states"});
  return id;
}

Model build(const Dbrx& d) {
  ModelBuilder b("DbrxForCausalLM");
  const ModuleId model = b.add_module(b.root(), "transformer", "DbrxModel");
  const ModuleId rotary =
      rotary_module(b, model, "rotary_emb", "DbrxRotaryEmbedding", d.hidden / d.heads);
  const ModuleId wte = b.embedding(model, "wte", d.vocabulary, d.hidden);
  const ModuleId list = b.add_module(model, "blocks", "ModuleList");
  b.model().at(list).has_forward = false;
  std::vector<ModuleId> blocks;
  for (std::int64_t i = 0; i < d.layers; ++i) blocks.push_back(add_block(b, list, i, d));
  const ModuleId norm = b.layer_norm(model, "norm_f", d.hidden, false, 1e-5);
  const ModuleId head = b.linear(b.root(), "lm_head", d.hidden, d.vocabulary, false);
  Program p(b, model, {"input_ids"});
  p.call(wte, {"input_ids"}, "inputs_embeds");
  p.op(Function::kAssign, {"inputs_embeds"}, "hidden_states");
  p.op(Function::kPositionIds, {"inputs_embeds"}, "position_ids");
  p.call_all(rotary, {"hidden_states", "position_ids"}, {"cos", "sin"});
  for (const ModuleId block : blocks)
    p.call(block, {"hidden_states", "cos", "sin"}, "hidden_states");
  p.returns({p.call(norm, {"hidden_states"}, "hidden_states")});
  b.model().not_modelled.push_back("routing: every expert is given an equal share of the tokens");
  return finish_causal(b, {model, wte, norm, blocks}, head, d.vocabulary, false);
}

Activation read_expert_activation(HfConfig& ffn) {
  HfConfig act = ffn.nested("ffn_act_fn");
  const Activation activation = read_activation(act, "name", "silu");
  act.finish();
  return activation;
}

}  // namespace

Model import_dbrx(HfConfig& config) {
  Dbrx d;
  d.hidden = config.size_or("d_model", "hidden_size", 2048);
  d.heads = config.size_or("n_heads", "num_attention_heads", 16, 1 << 16);
  d.layers = config.size_or("n_layers", "num_hidden_layers", 24, kLargestLayers);
  d.vocabulary = config.size("vocab_size", 32000, kLargestVocabulary);
  d.residual_dropout = config.probability("resid_pdrop", 0.0);
  d.embedding_dropout = config.probability("emb_pdrop", 0.0);  // Declared, never applied.
  HfConfig attention = config.nested("attn_config");
  d.attention_dropout = attention.probability("attn_pdrop", 0.0);
  d.clip = attention.optional_number("clip_qkv", std::nullopt, 1e-6, 1e9);
  d.kv_heads = attention.size("kv_n_heads", 1, 1 << 16);
  attention.ignore({"rope_theta"});
  HfConfig ffn = config.nested("ffn_config");
  d.ffn = ffn.size("ffn_hidden_size", 3584);
  d.experts = ffn.size("moe_num_experts", 4, kLargestExperts);
  d.top_k = ffn.size("moe_top_k", 1, kLargestExperts);
  d.norm_power = ffn.optional_number("moe_normalize_expert_weights", 1.0, 0.0, 1e3);
  if (d.norm_power && *d.norm_power != 1 && *d.norm_power != 2) {
    ffn.problem("moe_normalize_expert_weights", "is a norm that is not modelled", "1, 2 or null");
  }
  d.activation = read_expert_activation(ffn);
  d.jitter = ffn.optional_number("moe_jitter_eps", std::nullopt, 0.0, 1.0).value_or(0.0);
  ffn.ignore({"moe_loss_weight", "hidden_size"});
  config.require_multiple("d_model", d.hidden, "n_heads", d.heads);
  config.require_multiple("n_heads", d.heads, "attn_config.kv_n_heads", d.kv_heads);
  if (d.top_k > d.experts) ffn.problem("moe_top_k", "is larger than moe_num_experts");
  if (read_tied(config, false))
    config.problem("tie_word_embeddings", "is true, which DBRX does not support", "false");
  config.ignore({"max_seq_len", "max_position_embeddings", "output_router_logits"});
  attention.finish();
  ffn.finish();
  config.finish();
  if (!config.usable()) return {};
  return build(d);
}

}  // namespace foreshard
