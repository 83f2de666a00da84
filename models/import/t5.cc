// T5: encoder and decoder with relative position bias, which the first block of each stack makes
// for all, and one table of embeddings for both stacks and the head.

#include <cmath>

#include <fmt/core.h>

#include "models/import/families.h"

namespace foreshard {
namespace {

struct T5 {
  std::int64_t vocabulary, hidden, head_dim, ffn, encoder_layers, decoder_layers, heads, buckets,
      distance;
  double dropout, eps;
  Activation activation = Activation::kRelu;
  bool gated = false, scaled_output = true;

  std::int64_t inner() const { return heads * head_dim; }
};

ModuleId norm(ModelBuilder& b, ModuleId parent, const std::string& name, const T5& t) {
  return rms_norm_module(b, parent, name, "T5LayerNorm", t.hidden, t.eps, NormStyle::kT5);
}

struct Place {
  bool decoder = false,
       first =
           false;  ///< The first block of a stack makes the position bias, the others are given it.
};

/// Inputs: hidden_states[, key_value_states][, position_bias]; outputs attn_output, position_bias.
ModuleId add_attention(ModelBuilder& b, ModuleId parent, const T5& t, const Place& at, bool cross) {
  const ModuleId id =
      b.add_module(parent, cross ? "EncDecAttention" : "SelfAttention", "T5Attention");
  const ModuleId q = b.linear(id, "q", t.hidden, t.inner(), false),
                 k = b.linear(id, "k", t.hidden, t.inner(), false);
  const ModuleId v = b.linear(id, "v", t.hidden, t.inner(), false),
                 o = b.linear(id, "o", t.inner(), t.hidden, false);
  ModuleId table;
  if (at.first && !cross) table = b.embedding(id, "relative_attention_bias", t.buckets, t.heads);
  const std::string source = cross ? "key_value_states" : "hidden_states";
  std::vector<std::string> inputs{"hidden_states"};
  if (cross) inputs.push_back(source);
  if (!at.first) inputs.emplace_back("position_bias");
  Program p(b, id, inputs);
  const auto project = [&](ModuleId projection, const std::string& x, const std::string& out) {
    p.transpose(p.view(p.call(projection, {x}), {0, 0, -1, t.head_dim}), 1, 2, out);
  };
  project(q, "hidden_states", "query_states");
  project(k, source, "key_states");
  project(v, source, "value_states");
  if (at.first && cross)
    p.op_ints(Function::kZeroBias, {"hidden_states", source}, {t.heads}, "position_bias");
  if (at.first && !cross) {
    const std::string values =
        p.call(table, {p.op_ints(Function::kRelativeBuckets, {"hidden_states"},
                                 {at.decoder ? 0 : 1, t.buckets, t.distance})});
    const std::string by_head = p.transpose(p.transpose(values, 0, 2), 1, 2);  // permute(2, 0, 1)
    p.op_ints(Function::kUnsqueeze, {by_head}, {0}, "position_bias");
  }
  p.op_ints(Function::kPositionMask, {"position_bias"}, {at.decoder && !cross ? 1 : 0}, "mask");
  AttentionCall call;
  call.causal = at.decoder && !cross;
  call.scale = 1.0;  // Scores are not scaled; initial weights are instead.
  call.dropout = t.dropout;
  call.mask = "mask";
  attend(p, call);
  p.call(o, {p.reshape("attn_output", {0, 0, -1})}, "attn_output");
  p.returns({"attn_output", "position_bias"});
  return id;
}

ModuleId add_attention_layer(ModelBuilder& b, ModuleId list, const T5& t, const Place& at,
                             bool cross) {
  const ModuleId id = b.add_module(list, cross ? "1" : "0",
                                   cross ? "T5LayerCrossAttention" : "T5LayerSelfAttention");
  const ModuleId attention = add_attention(b, id, t, at, cross);
  const ModuleId before = norm(b, id, "layer_norm", t);
  std::vector<std::string> inputs{"hidden_states"}, arguments{"normed_hidden_states"};
  for (const auto& [wanted, name] :
       {std::pair{cross, "key_value_states"}, std::pair{!at.first, "position_bias"}}) {
    if (!wanted) continue;
    inputs.emplace_back(name);
    arguments.emplace_back(name);
  }
  Program p(b, id, inputs);
  p.call(before, {"hidden_states"}, "normed_hidden_states");
  p.call_all(attention, arguments, {"attention_output", "position_bias"});
  p.add("hidden_states", p.dropout("attention_output", t.dropout), "attention_output");
  p.returns({"attention_output", "position_bias"});
  return id;
}

ModuleId add_dense(ModelBuilder& b, ModuleId parent, const T5& t) {
  const ModuleId id =
      b.add_module(parent, "DenseReluDense", t.gated ? "T5DenseGatedActDense" : "T5DenseActDense");
  const ModuleId in = b.linear(id, t.gated ? "wi_0" : "wi", t.hidden, t.ffn, false);
  ModuleId linear;
  if (t.gated) linear = b.linear(id, "wi_1", t.hidden, t.ffn, false);
  const ModuleId out = b.linear(id, "wo", t.ffn, t.hidden, false);
  Program p(b, id, {"hidden_states"});
  if (t.gated) {
    activate(p, t.activation, p.call(in, {"hidden_states"}), "hidden_gelu");
    p.call(linear, {"hidden_states"}, "hidden_linear");
    p.mul("hidden_gelu", "hidden_linear", "hidden_states");
  } else {
    p.call(in, {"hidden_states"}, "hidden_states");
    activate(p, t.activation, "hidden_states", "hidden_states");
  }
  if (t.dropout > 0) p.dropout("hidden_states", t.dropout, "hidden_states");
  p.returns({p.call(out, {"hidden_states"})});
  return id;
}

ModuleId add_feed_forward(ModelBuilder& b, ModuleId list, const T5& t, const std::string& name) {
  const ModuleId id = b.add_module(list, name, "T5LayerFF");
  const ModuleId dense = add_dense(b, id, t), before = norm(b, id, "layer_norm", t);
  Program p(b, id, {"hidden_states"});
  p.call(dense, {p.call(before, {"hidden_states"})}, "forwarded_states");
  p.returns({p.add("hidden_states", p.dropout("forwarded_states", t.dropout))});
  return id;
}

/// Encoder: hidden_states[, position_bias]. Decoder: also encoder_hidden_states[, cross_bias].
/// Returns the biases too.
ModuleId add_block(ModelBuilder& b, ModuleId blocks, std::int64_t layer, const T5& t,
                   const Place& at) {
  const ModuleId id = b.add_module(blocks, std::to_string(layer), "T5Block");
  const ModuleId list = b.add_module(id, "layer", "ModuleList");
  b.model().at(list).has_forward = false;
  const ModuleId self = add_attention_layer(b, list, t, at, false);
  ModuleId cross;
  if (at.decoder) cross = add_attention_layer(b, list, t, at, true);
  const ModuleId feed_forward = add_feed_forward(b, list, t, at.decoder ? "2" : "1");
  std::vector<std::string> inputs{"hidden_states"}, self_inputs{"hidden_states"},
      cross_inputs{"hidden_states", "encoder_hidden_states"};
  std::vector<std::string> outputs{"hidden_states", "position_bias"};
  if (at.decoder) inputs.emplace_back("encoder_hidden_states");
  if (!at.first) {
    inputs.emplace_back("position_bias");
    self_inputs.emplace_back("position_bias");
    cross_inputs.emplace_back("cross_bias");
    if (at.decoder) inputs.emplace_back("cross_bias");
  }
  Program p(b, id, inputs);
  p.call_all(self, self_inputs, {"hidden_states", "position_bias"});
  if (at.decoder) {
    p.call_all(cross, cross_inputs, {"hidden_states", "cross_bias"});
    outputs.emplace_back("cross_bias");
  }
  p.call(feed_forward, {"hidden_states"}, "hidden_states");
  p.returns(outputs);
  return id;
}

Decoder add_stack(ModelBuilder& b, const T5& t, ModuleId shared, bool decoder) {
  Decoder s;
  s.model = b.add_module(b.root(), decoder ? "decoder" : "encoder", "T5Stack");
  s.embedding = b.embedding(s.model, "embed_tokens", t.vocabulary, t.hidden);
  b.tie_parameter(s.embedding, "weight", b.model().at(shared).parameters[0].id);
  const ModuleId list = b.add_module(s.model, "block", "ModuleList");
  b.model().at(list).has_forward = false;
  const std::int64_t layers = decoder ? t.decoder_layers : t.encoder_layers;
  for (std::int64_t i = 0; i < layers; ++i)
    s.blocks.push_back(add_block(b, list, i, t, {decoder, i == 0}));
  s.norm = norm(b, s.model, "final_layer_norm", t);
  std::vector<std::string> inputs{"input_ids"};
  if (decoder) inputs.emplace_back("encoder_hidden_states");
  Program p(b, s.model, inputs);
  p.call(s.embedding, {"input_ids"}, "inputs_embeds");
  p.op(Function::kAssign, {p.dropout("inputs_embeds", t.dropout)}, "hidden_states");
  for (const ModuleId block : s.blocks) {
    std::vector<std::string> arguments, results{"hidden_states", "position_bias"};
    for (const ValueSlot slot : b.model().at(block).inputs)
      arguments.push_back(b.model().at(block).value_names[static_cast<std::size_t>(slot)]);
    if (decoder) results.emplace_back("cross_bias");
    p.call_all(block, arguments, results);
  }
  p.call(s.norm, {"hidden_states"}, "hidden_states");
  p.returns({p.dropout("hidden_states", t.dropout)});
  return s;
}

Model build(const T5& t) {
  ModelBuilder b("T5ForConditionalGeneration");
  const ModuleId shared = b.embedding(b.root(), "shared", t.vocabulary, t.hidden);
  const Decoder encoder = add_stack(b, t, shared, false), decoder = add_stack(b, t, shared, true);
  const ModuleId head = b.linear(b.root(), "lm_head", t.hidden, t.vocabulary, false);
  b.tie_parameter(head, "weight", b.model().at(shared).parameters[0].id);
  Program p(b, b.root(), {"input_ids", "decoder_input_ids"});
  p.call(encoder.model, {"input_ids"}, "encoder_hidden_states");
  p.call(decoder.model, {"decoder_input_ids", "encoder_hidden_states"}, "sequence_output");
  if (t.scaled_output)
    p.mul_scalar("sequence_output", 1.0 / std::sqrt(static_cast<double>(t.hidden)),
                 "sequence_output");
  p.returns({p.call(head, {"sequence_output"}, "lm_logits")});
  Model& m = b.model();
  m.architecture = "T5ForConditionalGeneration";
  m.sample = "a decoder input as long as the encoder's, whose tokens are the ones counted";
  m.arguments = {token_argument("input_ids", t.vocabulary),
                 token_argument("decoder_input_ids", t.vocabulary)};
  std::vector<ModuleId> blocks = encoder.blocks;
  blocks.insert(blocks.end(), decoder.blocks.begin(), decoder.blocks.end());
  m.roles = {blocks, {shared}, {decoder.norm, head}, {}};
  return b.take();
}

// "relu", "gated-gelu" (then the tanh form of GELU), "gated-silu", ...
void read_feed_forward(HfConfig& config, T5& t) {
  const std::string text = config.text("feed_forward_proj", "relu");
  const std::size_t dash = text.find('-');
  std::string name = dash == std::string::npos ? text : text.substr(dash + 1);
  t.gated = text.rfind("gated-", 0) == 0;
  if (text == "gated-gelu") name = "gelu_new";
  const auto activation = parse_activation(name);
  if (!activation || (dash != std::string::npos && !t.gated)) {
    config.problem("feed_forward_proj", fmt::format("is \"{}\"", text),
                   "an activation like relu, or gated-gelu, gated-silu");
    return;
  }
  t.activation = *activation;
}

}  // namespace

Model import_t5(HfConfig& config) {
  T5 t;
  t.vocabulary = config.size("vocab_size", 32128, kLargestVocabulary);
  t.hidden = config.size_or("d_model", "hidden_size", 512);
  t.head_dim = config.size_or("d_kv", "head_dim", 64, 1 << 16);
  t.ffn = config.size("d_ff", 2048);
  t.encoder_layers = config.size_or("num_layers", "num_hidden_layers", 6, kLargestLayers);
  t.decoder_layers = config.optional_size("num_decoder_layers", std::nullopt, kLargestLayers)
                         .value_or(t.encoder_layers);
  t.heads = config.size_or("num_heads", "num_attention_heads", 8, 1 << 16);
  t.buckets = config.size("relative_attention_num_buckets", 32, 1 << 16, 4);
  t.distance = config.size("relative_attention_max_distance", 128, kLargestVocabulary);
  t.dropout = config.probability("dropout_rate", 0.1);
  t.eps = config.number("layer_norm_epsilon", 1e-6, 0, 1);
  read_feed_forward(config, t);
  t.scaled_output = config.flag("tie_word_embeddings", true);  // The table is tied in any case.
  config.ignore({"initializer_factor", "classifier_dropout", "is_encoder_decoder", "n_positions",
                 "decoder_start_token_id", "output_past", "is_decoder"});
  config.finish();
  if (!config.usable()) return {};
  return build(t);
}

}  // namespace foreshard
