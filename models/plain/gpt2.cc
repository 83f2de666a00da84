#include <string>

#include "models/import/program.h"
#include "models/plain/plain_models.h"

namespace foreshard {
namespace {

ModuleId gpt2_block(ModelBuilder& b, ModuleId parent, const std::string& name,
                    const PlainModelOptions& o) {
  const std::int64_t n = o.hidden, ffn = o.ffn > 0 ? o.ffn : 4 * n;
  const ModuleId m = b.add_module(parent, name, "GPT2Block");
  const ModuleId ln_1 = b.layer_norm(m, "ln_1", n, true, 1e-5);
  const ModuleId c_attn = b.linear(m, "c_attn", n, 3 * n, true),
                 c_proj = b.linear(m, "c_proj", n, n, true);
  const ModuleId ln_2 = b.layer_norm(m, "ln_2", n, true, 1e-5);
  const ModuleId c_fc = b.linear(m, "c_fc", n, ffn, true),
                 c_out = b.linear(m, "c_out", ffn, n, true);
  Program p(b, m, {"x"});
  const std::string packed = p.call(c_attn, {p.call(ln_1, {"x"})});
  p.ops(Function::kSplit, {packed}, {2, n, n, n}, {"q", "k", "v"});
  for (const char* t : {"q", "k", "v"}) {
    const std::string heads = p.op_ints(Function::kView, {t}, {0, 0, o.heads, n / o.heads});
    p.op_ints(Function::kTranspose, {heads}, {1, 2}, t);
  }
  const std::string attended = p.op_ints(Function::kAttention, {"q", "k", "v"}, {1}, "a");
  if (o.dropout > 0) b.model().at(m).program.back().floats = {o.dropout, 0.0};
  const std::string rows = p.op_ints(
      Function::kReshape, {p.op_ints(Function::kTranspose, {attended}, {1, 2})}, {0, 0, n});
  p.call(c_proj, {rows}, "a");
  p.add("x", o.dropout > 0 ? p.dropout("a", o.dropout) : "a", "x");
  const std::string wide = p.call(c_fc, {p.call(ln_2, {"x"})});
  p.call(c_out, {p.op_ints(Function::kGelu, {wide}, {1})}, "m");
  p.add("x", o.dropout > 0 ? p.dropout("m", o.dropout) : "m", "%out");
  p.returns({"%out"});
  return m;
}

}  // namespace

Model plain_gpt2(const PlainModelOptions& o) {
  ModelBuilder b("GPT2");
  const ModuleId root = b.root();
  const ModuleId tokens = b.embedding(root, "tok_embeddings", o.vocabulary, o.hidden);
  const ModuleId positions = b.embedding(root, "pos_embeddings", o.max_sequence, o.hidden);
  const ModuleId layers = b.add_module(root, "layers", "ModuleList");
  b.model().at(layers).has_forward = false;
  for (std::int64_t i = 0; i < o.layers; ++i)
    b.model().roles.blocks.push_back(gpt2_block(b, layers, std::to_string(i), o));
  const ModuleId norm = b.layer_norm(root, "norm", o.hidden, true, 1e-5);
  const ModuleId head = b.linear(root, "output", o.hidden, o.vocabulary, false);
  Program p(b, root, {"tokens"});
  const std::string row = p.op_ints(Function::kArange, {"tokens"}, {0});
  p.op_ints(Function::kView, {row}, {-1}, "pos");
  const std::string token_part = p.call(tokens, {"tokens"});
  p.add(token_part, p.call(positions, {"pos"}), "h");
  for (const ModuleId m : b.model().roles.blocks) p.call(m, {"h"}, "h");
  p.call(head, {p.call(norm, {"h"})}, "%logits");
  p.returns({"%logits"});
  if (o.tied) b.tie_parameter(head, "weight", b.model().at(tokens).parameters[0].id);
  Model& m = b.model();
  m.name = "plain gpt2";
  m.architecture = "GPT2";
  m.arguments = {{"tokens", true, {}, o.vocabulary, DType::kInt64, false}};
  m.roles.embeddings = {tokens, positions};
  m.roles.tail = {norm, head};
  m.longest_sequence = o.max_sequence;
  for (ParameterDef& q : m.parameters) q.dtype = o.dtype;
  return b.take();
}

}  // namespace foreshard
