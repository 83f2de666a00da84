// BERT with a classification head: post-norm blocks, three embedding tables, dropout everywhere.

#include <cmath>

#include "models/import/families.h"

namespace foreshard {
namespace {

struct Bert {
  std::int64_t vocabulary, hidden, layers, heads, ffn, positions, types, labels;
  Activation activation;
  double dropout, attention_dropout, classifier_dropout, eps;
};

ModuleId add_embeddings(ModelBuilder& b, ModuleId model, const Bert& c) {
  const ModuleId id = b.add_module(model, "embeddings", "BertEmbeddings");
  const ModuleId words = b.embedding(id, "word_embeddings", c.vocabulary, c.hidden);
  const ModuleId positions = b.embedding(id, "position_embeddings", c.positions, c.hidden);
  const ModuleId types = b.embedding(id, "token_type_embeddings", c.types, c.hidden);
  const ModuleId norm = b.layer_norm(id, "LayerNorm", c.hidden, true, c.eps);
  b.model().at(id).buffers = {{"position_ids", {1, c.positions}, DType::kInt64, false},
                              {"token_type_ids", {1, c.positions}, DType::kInt64, false}};
  Program p(b, id, {"input_ids"});
  // Positions are the first s entries of a buffer; token types are gathered into a tensor of their
  // own.
  p.op_ints(Function::kBuffer, {}, {0}, "all_positions");
  p.op_ints(Function::kSliceLike, {"all_positions", "input_ids"}, {1}, "position_ids");
  p.op_ints(Function::kBuffer, {}, {1}, "buffered_token_type_ids");
  p.op_ints(Function::kGather, {"buffered_token_type_ids", "position_ids"}, {1}, "token_type_ids");
  p.call(words, {"input_ids"}, "inputs_embeds");
  p.call(types, {"token_type_ids"}, "token_type_embeddings");
  p.add("inputs_embeds", "token_type_embeddings", "embeddings");
  p.call(positions, {"position_ids"}, "position_embeddings");
  p.add("embeddings", "position_embeddings", "embeddings");
  p.call(norm, {"embeddings"}, "embeddings");
  p.returns({p.dropout("embeddings", c.dropout)});
  return id;
}

// dense, dropout, LayerNorm(x + input): the second half of both parts of a block.
ModuleId add_output(ModelBuilder& b, ModuleId parent, const std::string& class_name,
                    std::int64_t in, const Bert& c) {
  const ModuleId id = b.add_module(parent, "output", class_name);
  const ModuleId dense = b.linear(id, "dense", in, c.hidden, true);
  const ModuleId norm = b.layer_norm(id, "LayerNorm", c.hidden, true, c.eps);
  Program p(b, id, {"hidden_states", "input_tensor"});
  p.call(dense, {"hidden_states"}, "hidden_states");
  if (c.dropout > 0) p.dropout("hidden_states", c.dropout, "hidden_states");
  p.call(norm, {p.add("hidden_states", "input_tensor")}, "hidden_states");
  p.returns({"hidden_states"});
  return id;
}

ModuleId add_self_attention(ModelBuilder& b, ModuleId parent, const Bert& c) {
  const std::int64_t head = c.hidden / c.heads;
  const ModuleId id = b.add_module(parent, "self", "BertSelfAttention");
  const ModuleId q = b.linear(id, "query", c.hidden, c.hidden, true);
  const ModuleId k = b.linear(id, "key", c.hidden, c.hidden, true);
  const ModuleId v = b.linear(id, "value", c.hidden, c.hidden, true);
  Program p(b, id, {"hidden_states"});
  const auto project = [&](ModuleId m, const char* out) {
    p.transpose(p.view(p.call(m, {"hidden_states"}), {0, 0, -1, head}), 1, 2, out);
  };
  project(q, "query_states");
  project(k, "key_states");
  project(v, "value_states");
  AttentionCall call;
  call.causal = false;
  call.scale = 1.0 / std::sqrt(static_cast<double>(head));
  call.dropout = c.attention_dropout;
  attend(p, call);
  p.returns({p.reshape("attn_output", {0, 0, -1})});
  return id;
}

ModuleId add_block(ModelBuilder& b, ModuleId list, std::int64_t layer, const Bert& c) {
  const ModuleId id = b.add_module(list, std::to_string(layer), "BertLayer");
  const ModuleId attention = b.add_module(id, "attention", "BertAttention");
  const ModuleId self = add_self_attention(b, attention, c);
  const ModuleId self_output = add_output(b, attention, "BertSelfOutput", c.hidden, c);
  Program a(b, attention, {"hidden_states"});
  a.call(self, {"hidden_states"}, "attention_output");
  a.call(self_output, {"attention_output", "hidden_states"}, "attention_output");
  a.returns({"attention_output"});

  const ModuleId intermediate = b.add_module(id, "intermediate", "BertIntermediate");
  const ModuleId dense = b.linear(intermediate, "dense", c.hidden, c.ffn, true);
  Program m(b, intermediate, {"hidden_states"});
  m.call(dense, {"hidden_states"}, "hidden_states");
  activate(m, c.activation, "hidden_states", "hidden_states");
  m.returns({"hidden_states"});

  const ModuleId output = add_output(b, id, "BertOutput", c.ffn, c);
  Program p(b, id, {"hidden_states"});
  p.call(attention, {"hidden_states"}, "attention_output");
  p.call(intermediate, {"attention_output"}, "intermediate_output");
  p.call(output, {"intermediate_output", "attention_output"}, "layer_output");
  p.returns({"layer_output"});
  return id;
}

ModuleId add_pooler(ModelBuilder& b, ModuleId model, std::int64_t hidden) {
  const ModuleId id = b.add_module(model, "pooler", "BertPooler");
  const ModuleId dense = b.linear(id, "dense", hidden, hidden, true);
  Program p(b, id, {"hidden_states"});
  p.select("hidden_states", 1, 0, "first_token_tensor");
  p.call(dense, {"first_token_tensor"}, "pooled_output");
  p.op(Function::kTanh, {"pooled_output"}, "pooled_output");
  p.returns({"pooled_output"});
  return id;
}

Model build(const Bert& c) {
  ModelBuilder b("BertForSequenceClassification");
  const ModuleId model = b.add_module(b.root(), "bert", "BertModel");
  const ModuleId embeddings = add_embeddings(b, model, c);
  const ModuleId encoder = b.add_module(model, "encoder", "BertEncoder");
  const ModuleId list = b.add_module(encoder, "layer", "ModuleList");
  b.model().at(list).has_forward = false;
  std::vector<ModuleId> blocks;
  for (std::int64_t i = 0; i < c.layers; ++i) blocks.push_back(add_block(b, list, i, c));
  Program e(b, encoder, {"hidden_states"});
  for (const ModuleId block : blocks) e.call(block, {"hidden_states"}, "hidden_states");
  e.returns({"hidden_states"});
  const ModuleId pooler = add_pooler(b, model, c.hidden);
  Program m(b, model, {"input_ids"});
  m.call(embeddings, {"input_ids"}, "embedding_output");
  m.call(encoder, {"embedding_output"}, "sequence_output");
  m.returns({m.call(pooler, {"sequence_output"}, "pooled_output")});
  const ModuleId classifier = b.linear(b.root(), "classifier", c.hidden, c.labels, true);
  Program p(b, b.root(), {"input_ids"});
  p.call(model, {"input_ids"}, "pooled_output");
  if (c.classifier_dropout > 0) p.dropout("pooled_output", c.classifier_dropout, "pooled_output");
  p.returns({p.call(classifier, {"pooled_output"}, "logits")});
  b.model().architecture = "BertForSequenceClassification";
  b.model().arguments = {token_argument("input_ids", c.vocabulary)};
  b.model().longest_sequence = c.positions;
  b.model().classes = c.labels;
  b.model().roles = {
      blocks, {b.model().find_module("bert.embeddings.word_embeddings")}, {}, {embeddings}};
  return b.take();
}

}  // namespace

Model import_bert_classifier(HfConfig& config) {
  Bert c;
  c.vocabulary = config.size("vocab_size", 30522, kLargestVocabulary);
  c.hidden = config.size("hidden_size", 768);
  c.layers = config.size("num_hidden_layers", 12, kLargestLayers);
  c.heads = config.size("num_attention_heads", 12, 1 << 16);
  c.ffn = config.size("intermediate_size", 3072);
  c.positions = config.size("max_position_embeddings", 512, kLargestVocabulary);
  c.types = config.size("type_vocab_size", 2);
  c.activation = read_activation(config, "hidden_act", "gelu");
  c.dropout = config.probability("hidden_dropout_prob", 0.1);
  c.attention_dropout = config.probability("attention_probs_dropout_prob", 0.1);
  c.classifier_dropout =
      config.optional_number("classifier_dropout", std::nullopt, 0.0, 0.999999).value_or(c.dropout);
  c.eps = config.number("layer_norm_eps", 1e-12, 0, 1);
  c.labels = config.labels();
  config.require_multiple("hidden_size", c.hidden, "num_attention_heads", c.heads);
  for (const char* key : {"is_decoder", "add_cross_attention"}) {
    if (config.flag(key, false))
      config.problem(key, "is true: BERT as a decoder is not modelled", "false");
  }
  read_tied(config, true);
  config.finish();
  if (!config.usable()) return {};
  return build(c);
}

}  // namespace foreshard
