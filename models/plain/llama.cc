#include <string>

#include "models/import/program.h"
#include "models/plain/plain_models.h"

namespace foreshard {
namespace {

using Names = std::vector<std::string>;

/// rotate(x): the halves of the last dimension, turned; the inner values are temporaries of a
/// function of its own.
std::string rotate(Program& p, const std::string& x) {
  const Names halves = p.ops(Function::kChunk, {x}, {-1, 2}, {"", ""});
  const std::string &a = halves[0], &b = halves[1];
  const std::string first = p.op(Function::kSub, {p.mul(a, "cos"), p.mul(b, "sin")});
  const std::string second = p.op(Function::kAdd, {p.mul(b, "cos"), p.mul(a, "sin")});
  return p.op_ints(Function::kCat, {first, second}, {-1});
}

ModuleId attention(ModelBuilder& b, ModuleId parent, const PlainModelOptions& o) {
  const std::int64_t kv = o.kv_heads > 0 ? o.kv_heads : o.heads;
  const std::int64_t d = o.head_dim > 0 ? o.head_dim : o.hidden / o.heads;
  const ModuleId m = b.add_module(parent, "attention", "LlamaAttention");
  ModuleId wq, wk, wv, wqkv;
  if (o.fused_projections) {
    wqkv = b.linear(m, "wqkv", o.hidden, (o.heads + 2 * kv) * d, false);
  } else {
    wq = b.linear(m, "wq", o.hidden, o.heads * d, false);
    wk = b.linear(m, "wk", o.hidden, kv * d, false);
    wv = b.linear(m, "wv", o.hidden, kv * d, false);
  }
  const ModuleId wo = b.linear(m, "wo", o.heads * d, o.hidden, false);
  ModuleId q_norm, k_norm;
  if (o.qk_norm) {
    q_norm = b.rms_norm(m, "q_norm", d, 1e-5);
    k_norm = b.rms_norm(m, "k_norm", d, 1e-5);
  }
  Program p(b, m, {"x", "cos", "sin"});
  Names qkv;
  if (o.fused_projections)
    qkv = p.ops(Function::kSplit, {p.call(wqkv, {"x"})}, {-1, o.heads * d, kv * d, kv * d},
                {"", "", ""});
  const auto projected = [&](std::size_t i, ModuleId own) {
    return o.fused_projections ? qkv[i] : p.call(own, {"x"});
  };
  p.op_ints(Function::kView, {projected(0, wq)}, {0, 0, o.heads, d}, "q");
  p.op_ints(Function::kView, {projected(1, wk)}, {0, 0, kv, d}, "k");
  if (o.qk_norm) {
    const std::string q = p.call(q_norm, {"q"}), k = p.call(k_norm, {"k"});
    p.op(Function::kAssign, {k}, "k");
    p.op(Function::kAssign, {q}, "q");
  }
  const std::string q = p.op_ints(Function::kTranspose, {rotate(p, "q")}, {1, 2});
  const std::string k = p.op_ints(Function::kTranspose, {rotate(p, "k")}, {1, 2});
  // CPython stores the second name of a pair first.
  p.op(Function::kAssign, {k}, "k");
  p.op(Function::kAssign, {q}, "q");
  const std::string v = p.op_ints(Function::kView, {projected(2, wv)}, {0, 0, kv, d});
  p.op_ints(Function::kTranspose, {v}, {1, 2}, "v");
  p.op_ints(Function::kAttention, {"q", "k", "v"}, {1}, "o");
  const std::string rows = p.op_ints(
      Function::kReshape, {p.op_ints(Function::kTranspose, {"o"}, {1, 2})}, {0, 0, o.heads * d});
  p.call(wo, {rows}, "%out");
  p.returns({"%out"});
  return m;
}

ModuleId feed_forward(ModelBuilder& b, ModuleId parent, const PlainModelOptions& o) {
  const std::int64_t ffn = o.ffn > 0 ? o.ffn : 4 * o.hidden;
  const ModuleId m = b.add_module(parent, "feed_forward", "SwiGLU");
  if (o.fused_projections) {
    const ModuleId both = b.linear(m, "gate_up", o.hidden, 2 * ffn, false),
                   down = b.linear(m, "down", ffn, o.hidden, false);
    Program p(b, m, {"x"});
    const Names parts = p.ops(Function::kChunk, {p.call(both, {"x"})}, {-1, 2}, {"", ""});
    p.call(down, {p.mul(p.op(Function::kSilu, {parts[0]}), parts[1])}, "%out");
    p.returns({"%out"});
    return m;
  }
  const ModuleId w1 = b.linear(m, "w1", o.hidden, ffn, false),
                 w2 = b.linear(m, "w2", ffn, o.hidden, false);
  const ModuleId w3 = b.linear(m, "w3", o.hidden, ffn, false);
  Program p(b, m, {"x"});
  const std::string gate = p.op(Function::kSilu, {p.call(w1, {"x"})});
  p.call(w2, {p.mul(gate, p.call(w3, {"x"}))}, "%out");
  p.returns({"%out"});
  return m;
}

ModuleId llama_block(ModelBuilder& b, ModuleId parent, const std::string& name,
                     const PlainModelOptions& o) {
  const ModuleId m = b.add_module(parent, name, "LlamaBlock");
  const ModuleId mixer = attention(b, m, o), ffn = feed_forward(b, m, o);
  const ModuleId first = b.rms_norm(m, "attention_norm", o.hidden, 1e-5),
                 second = b.rms_norm(m, "ffn_norm", o.hidden, 1e-5);
  Program p(b, m, {"x", "cos", "sin"});
  p.add("x", p.call(mixer, {p.call(first, {"x"}), "cos", "sin"}), "h");
  p.add("h", p.call(ffn, {p.call(second, {"h"})}), "%out");
  p.returns({"%out"});
  return m;
}

}  // namespace

Model plain_llama(const PlainModelOptions& o) {
  ModelBuilder b("Llama");
  const ModuleId root = b.root();
  const ModuleId embedding = b.embedding(root, "tok_embeddings", o.vocabulary, o.hidden);
  const ModuleId layers = b.add_module(root, "layers", "ModuleList");
  b.model().at(layers).has_forward = false;
  for (std::int64_t i = 0; i < o.layers; ++i)
    b.model().roles.blocks.push_back(llama_block(b, layers, std::to_string(i), o));
  const ModuleId norm = b.rms_norm(root, "norm", o.hidden, 1e-5);
  const ModuleId head = b.linear(root, "output", o.hidden, o.vocabulary, false);
  const std::int64_t half = (o.head_dim > 0 ? o.head_dim : o.hidden / o.heads) / 2;
  b.model().at(root).buffers = {{"cos", {o.max_sequence, 1, half}, o.dtype, false},
                                {"sin", {o.max_sequence, 1, half}, o.dtype, false}};
  Program p(b, root, {"tokens"});
  p.call(embedding, {"tokens"}, "h");
  // cos[:s].to(h.dtype): the tokens are [b, s], the table's first dimension is the position.
  const std::string cos = p.op_ints(Function::kBuffer, {}, {0});
  const std::string cos_part = p.op_ints(Function::kSliceLike, {cos, "tokens"}, {0, 1});
  const std::string new_cos = p.cast_like(cos_part, "h");
  const std::string sin = p.op_ints(Function::kBuffer, {}, {1});
  const std::string sin_part = p.op_ints(Function::kSliceLike, {sin, "tokens"}, {0, 1});
  const std::string new_sin = p.cast_like(sin_part, "h");
  p.op(Function::kAssign, {new_sin}, "sin");
  p.op(Function::kAssign, {new_cos}, "cos");
  for (const ModuleId m : b.model().roles.blocks) p.call(m, {"h", "cos", "sin"}, "h");
  p.call(head, {p.call(norm, {"h"})}, "%logits");
  p.returns({"%logits"});
  if (o.tied) b.tie_parameter(head, "weight", b.model().at(embedding).parameters[0].id);
  Model& m = b.model();
  m.name = "plain llama";
  m.architecture = "Llama";
  m.arguments = {{"tokens", true, {}, o.vocabulary, DType::kInt64, false}};
  m.roles.embeddings = {embedding};
  m.roles.tail = {norm, head};
  for (ParameterDef& q : m.parameters) q.dtype = o.dtype;
  return b.take();
}

}  // namespace foreshard
