// MPT as llm-foundry trains it: learned positions of the configured length, fused Wqkv, biases,
// GELU, tied head. Parameters: 12 L d^2 + 13 L d + 2 d + (vocabulary + length) d, which
// llm-foundry's own benchmark table states.

#include <cmath>

#include "models/import/families.h"

namespace foreshard {
namespace {

struct Mpt {
  std::int64_t vocabulary, positions, hidden, layers, heads, ffn;
  bool bias;
};

ModuleId add_block(ModelBuilder& b, ModuleId list, std::int64_t layer, const Mpt& m) {
  const std::int64_t head = m.hidden / m.heads;
  const ModuleId id = b.add_module(list, std::to_string(layer), "MPTBlock");
  const ModuleId norm_1 = b.layer_norm(id, "norm_1", m.hidden, m.bias, 1e-5);
  const ModuleId attention = b.add_module(id, "attn", "GroupedQueryAttention");
  const ModuleId qkv = b.linear(attention, "Wqkv", m.hidden, 3 * m.hidden, m.bias);
  const ModuleId out = b.linear(attention, "out_proj", m.hidden, m.hidden, m.bias);
  const ModuleId norm_2 = b.layer_norm(id, "norm_2", m.hidden, m.bias, 1e-5);
  const ModuleId ffn = b.add_module(id, "ffn", "MPTMLP");
  const ModuleId up = b.linear(ffn, "up_proj", m.hidden, m.ffn, m.bias);
  const ModuleId down = b.linear(ffn, "down_proj", m.ffn, m.hidden, m.bias);

  Program a(b, attention, {"x"});
  a.call(qkv, {"x"}, "qkv");
  a.ops(Function::kChunk, {"qkv"}, {2, 3}, {"query_states", "key_states", "value_states"});
  for (const char* x : {"query_states", "key_states", "value_states"})
    a.transpose(a.view(x, {0, 0, -1, head}), 1, 2, x);
  AttentionCall call;
  call.scale = 1.0 / std::sqrt(static_cast<double>(head));
  attend(a, call);
  a.returns({a.call(out, {a.reshape("attn_output", {0, 0, -1})})});
  Program f(b, ffn, {"x"});
  f.returns({f.call(down, {f.op_ints(Function::kGelu, {f.call(up, {"x"})}, {0})})});
  Program p(b, id, {"x"});
  p.call(norm_1, {"x"}, "a");
  p.call(attention, {"a"}, "b");
  p.add("x", "b", "x");
  p.call(norm_2, {"x"}, "m");
  p.call(ffn, {"m"}, "n");
  p.add("x", "n", "x");
  p.returns({"x"});
  return id;
}

Model build(const Mpt& m) {
  ModelBuilder b("MPTForCausalLM");
  const ModuleId model = b.add_module(b.root(), "transformer", "MPTModel");
  const ModuleId wte = b.embedding(model, "wte", m.vocabulary, m.hidden);
  const ModuleId wpe = b.embedding(model, "wpe", m.positions, m.hidden);
  const ModuleId list = b.add_module(model, "blocks", "ModuleList");
  b.model().at(list).has_forward = false;
  std::vector<ModuleId> blocks;
  for (std::int64_t i = 0; i < m.layers; ++i) blocks.push_back(add_block(b, list, i, m));
  const ModuleId norm = b.layer_norm(model, "norm_f", m.hidden, m.bias, 1e-5);
  // llm-foundry calls the embedding itself to unembed; a head of its own that shares the weight
  // does the same work.
  const ModuleId head = b.linear(b.root(), "lm_head", m.hidden, m.vocabulary, false);
  b.tie_parameter(head, "weight", b.model().at(wte).parameters[0].id);

  Program p(b, model, {"input_ids"});
  p.call(wte, {"input_ids"}, "tok_emb");
  p.op(Function::kArange, {"input_ids"}, "pos");
  p.call(wpe, {"pos"}, "pos_emb");
  p.add("tok_emb", "pos_emb", "x");
  for (const ModuleId block : blocks) p.call(block, {"x"}, "x");
  p.call(norm, {"x"}, "x");
  p.returns({"x"});
  Program root(b, b.root(), {"input_ids"});
  root.call(model, {"input_ids"}, "outputs");
  root.returns({root.call(head, {"outputs"}, "logits")});
  b.model().architecture = "MPTForCausalLM";
  b.model().arguments = {token_argument("input_ids", m.vocabulary)};
  b.model().longest_sequence = m.positions;
  b.model().roles = {blocks, {wte}, {norm, head}, {}};
  return b.take();
}

}  // namespace

Model import_mpt(HfConfig& config) {
  Mpt m;
  m.vocabulary = config.size("vocab_size", 50368, kLargestVocabulary);
  m.positions = config.size("max_seq_len", 2048, kLargestVocabulary);
  m.hidden = config.size("d_model", 2048);
  m.heads = config.size("n_heads", 16, 1 << 16);
  m.layers = config.size("n_layers", 24, kLargestLayers);
  m.ffn = config.size("expansion_ratio", 4, 64) * m.hidden;
  m.bias = !config.flag("no_bias", false);
  config.require_multiple("d_model", m.hidden, "n_heads", m.heads);
  HfConfig attention = config.nested("attn_config");
  for (const char* key : {"alibi", "rope"}) {
    if (attention.flag(key, false))
      attention.problem(key, "is true: only learned positions are modelled for MPT", "false");
  }
  attention.ignore({"attn_impl", "attn_type", "attn_pdrop", "clip_qkv", "qk_ln", "softmax_scale",
                    "prefix_lm", "attn_uses_sequence_id", "alibi_bias_max"});
  config.ignore({"name", "init_device", "resid_pdrop", "emb_pdrop", "learned_pos_emb", "norm_type",
                 "tokenizer_name"});
  attention.finish();
  config.finish();
  if (!config.usable()) return {};
  return build(m);
}

}  // namespace foreshard
