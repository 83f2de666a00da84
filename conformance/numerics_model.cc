#include "conformance/numerics_model.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace foreshard {
namespace {

constexpr double kEpsilon = 1e-5;

std::int64_t integer(const Json& m, const char* key) { return m.at(key).get<std::int64_t>(); }

class DecoderBuilder {
 public:
  DecoderBuilder(const Json& m, DType compute)
      : llama_(m.at("kind") == "llama"),
        tied_(m.value("tied", false)),
        vocabulary_(integer(m, "vocab")),
        dim_(integer(m, "dim")),
        hidden_(integer(m, "hidden")),
        heads_(integer(m, "heads")),
        layers_(integer(m, "layers")),
        seq_(integer(m, "seq")),
        compute_(compute),
        b_("Decoder") {}

  Model build() {
    const ModuleId root = b_.root();
    b_.set_signature(root, {"tokens"}, {"logits"});
    const ModuleId embed = b_.embedding(root, "embed", vocabulary_, dim_);
    b_.call(root, embed, {"tokens"}, {"x"});
    if (!llama_) {
      const ModuleId pos = b_.embedding(root, "pos", seq_, dim_);
      b_.add_statement(root, Function::kArange, {}, {"positions"}).ints = {seq_};
      b_.call(root, pos, {"positions"}, {"p"});
      b_.add_statement(root, Function::kAdd, {"x", "p"}, {"x"});
    }
    const ModuleId list = b_.add_module(root, "layers", "ModuleList");
    b_.model().at(list).has_forward = false;
    b_.set_signature(list, {}, {});
    for (std::int64_t i = 0; i < layers_; ++i) {
      const ModuleId block = add_block(list, std::to_string(i));
      b_.call(root, block, {"x"}, {"x"});
      b_.model().roles.blocks.push_back(block);
    }
    const ModuleId norm = add_norm(root, "norm");
    const ModuleId head = b_.linear(root, "head", dim_, vocabulary_, false);
    if (tied_) b_.tie_parameter(head, "weight", b_.model().at(embed).parameters[0].id);
    b_.call(root, norm, {"x"}, {"normed"});
    b_.call(root, head, {"normed"}, {"logits"});
    b_.model().roles.embeddings = {embed};
    b_.model().roles.tail = {norm, head};
    ModelArgument tokens;
    tokens.name = "tokens";
    tokens.vocabulary = vocabulary_;
    b_.model().arguments.push_back(std::move(tokens));
    return b_.take();
  }

 private:
  /// x * rsqrt(mean(x^2) + eps) in fp32, rounded to x's dtype, times the weight; or nn.LayerNorm.
  ModuleId add_norm(ModuleId parent, const std::string& name) {
    if (!llama_) return b_.layer_norm(parent, name, dim_, true, kEpsilon);
    const ModuleId m = b_.add_module(parent, name, "RMSNorm");
    b_.set_signature(m, {"x"}, {"out"});
    const ParameterId weight = b_.add_parameter(m, "weight", {dim_});
    b_.add_statement(m, Function::kCast, {"x"}, {"wide"}).dtype = DType::kFloat32;
    b_.add_statement(m, Function::kPowScalar, {"wide"}, {"squares"}).floats = {2};
    b_.add_statement(m, Function::kMeanLast, {"squares"}, {"mean"});
    b_.add_statement(m, Function::kAddScalar, {"mean"}, {"shifted"}).floats = {kEpsilon};
    b_.add_statement(m, Function::kRsqrt, {"shifted"}, {"scale"});
    b_.add_statement(m, Function::kMul, {"wide", "scale"}, {"unit"});
    b_.add_statement(m, Function::kCast, {"unit"}, {"narrow"}).dtype = compute_;
    b_.add_statement(m, Function::kParameter, {}, {"weight"}).parameters = {weight};
    b_.add_statement(m, Function::kMul, {"narrow", "weight"}, {"out"});
    return m;
  }

  ModuleId add_block(ModuleId parent, const std::string& name) {
    const ModuleId m = b_.add_module(parent, name, "Block");
    b_.set_signature(m, {"x"}, {"out"});
    const ModuleId norm1 = add_norm(m, "norm1"), attention = add_attention(m),
                   norm2 = add_norm(m, "norm2"), mlp = add_mlp(m);
    b_.call(m, norm1, {"x"}, {"n1"});
    b_.call(m, attention, {"n1"}, {"a"});
    b_.add_statement(m, Function::kAdd, {"x", "a"}, {"middle"});
    b_.call(m, norm2, {"middle"}, {"n2"});
    b_.call(m, mlp, {"n2"}, {"f"});
    b_.add_statement(m, Function::kAdd, {"middle", "f"}, {"out"});
    return m;
  }

  /// softmax(q kᵀ / sqrt(head dim) + mask) v. Adding minus infinity is what masked_fill gives; the
  /// divisor is a buffer, so that scores are divided and not multiplied by a rounded reciprocal.
  ModuleId add_attention(ModuleId parent) {
    const ModuleId m = b_.add_module(parent, "attn", "Attention");
    b_.set_signature(m, {"x"}, {"out"});
    const bool bias = !llama_;
    b_.model().at(m).buffers.push_back({"mask", {seq_, seq_}, compute_, false});
    b_.model().at(m).buffers.push_back({"divisor", {}, DType::kFloat32, false});
    const std::int64_t width = dim_ / heads_;
    const char* const names[] = {"wq", "wk", "wv"};
    std::vector<ModuleId> projections;
    for (const char* name : names)
      projections.push_back(b_.linear(m, name, dim_, dim_, bias && name != names[1]));
    const ModuleId wo = b_.linear(m, "wo", dim_, dim_, bias);
    for (std::size_t i = 0; i < projections.size(); ++i) {
      const std::string n = names[i];
      b_.call(m, projections[i], {"x"}, {n + "_flat"});
      b_.add_statement(m, Function::kView, {n + "_flat"}, {n + "_split"}).ints = {-1, seq_, heads_,
                                                                                  width};
      b_.add_statement(m, Function::kTranspose, {n + "_split"}, {n + "_heads"}).ints = {1, 2};
    }
    b_.add_statement(m, Function::kTranspose, {"wk_heads"}, {"kt"}).ints = {2, 3};
    b_.add_statement(m, Function::kMatmul, {"wq_heads", "kt"}, {"raw"});
    b_.add_statement(m, Function::kBuffer, {}, {"divisor"}).ints = {1};
    b_.add_statement(m, Function::kDiv, {"raw", "divisor"}, {"scores"});
    b_.add_statement(m, Function::kAddBuffer, {"scores"}, {"masked"}).ints = {0};
    b_.add_statement(m, Function::kSoftmax, {"masked"}, {"p"}).dtype = compute_;
    b_.add_statement(m, Function::kMatmul, {"p", "wv_heads"}, {"o_heads"});
    b_.add_statement(m, Function::kTranspose, {"o_heads"}, {"o_split"}).ints = {1, 2};
    b_.add_statement(m, Function::kReshape, {"o_split"}, {"o"}).ints = {-1, seq_, dim_};
    b_.call(m, wo, {"o"}, {"out"});
    return m;
  }

  ModuleId add_mlp(ModuleId parent) {
    const ModuleId m = b_.add_module(parent, "mlp", llama_ ? "SwiGLU" : "GeluMlp");
    b_.set_signature(m, {"x"}, {"out"});
    if (llama_) {
      const ModuleId w1 = b_.linear(m, "w1", dim_, hidden_, false),
                     w2 = b_.linear(m, "w2", hidden_, dim_, false),
                     w3 = b_.linear(m, "w3", dim_, hidden_, false);
      b_.call(m, w1, {"x"}, {"a"});
      b_.add_statement(m, Function::kSilu, {"a"}, {"s"});
      b_.call(m, w3, {"x"}, {"b"});
      b_.add_statement(m, Function::kMul, {"s", "b"}, {"g"});
      b_.call(m, w2, {"g"}, {"out"});
    } else {
      const ModuleId fc = b_.linear(m, "fc", dim_, hidden_, true),
                     proj = b_.linear(m, "proj", hidden_, dim_, true);
      b_.call(m, fc, {"x"}, {"a"});
      Statement& gelu = b_.add_statement(m, Function::kGelu, {"a"}, {"g"});
      gelu.ints = {1};
      b_.call(m, proj, {"g"}, {"out"});
    }
    return m;
  }

  const bool llama_, tied_;
  const std::int64_t vocabulary_, dim_, hidden_, heads_, layers_, seq_;
  const DType compute_;
  ModelBuilder b_;
};

Model build_mlp(const Json& m) {
  const auto widths = m.at("widths").get<std::vector<std::int64_t>>();
  ModelBuilder b("Mlp");
  const ModuleId root = b.root();
  b.set_signature(root, {"x"}, {"x"});
  const ModuleId list = b.add_module(root, "layers", "ModuleList");
  b.model().at(list).has_forward = false;
  b.set_signature(list, {}, {});
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    const ModuleId layer = b.add_module(list, std::to_string(i), "MlpLayer");
    b.set_signature(layer, {"x"}, {"y"});
    const ModuleId fc = b.linear(layer, "fc", widths[i], widths[i + 1], true);
    b.call(layer, fc, {"x"}, {"y"});
    if (i + 2 < widths.size()) b.add_statement(layer, Function::kRelu, {"y"}, {"y"});
    b.call(root, layer, {"x"}, {"x"});
    b.model().roles.blocks.push_back(layer);
  }
  for (const bool target : {false, true}) {
    ModelArgument a;
    a.name = target ? "y" : "x";
    a.tokens = false;
    a.shape = {-1, target ? widths.back() : widths.front()};
    a.dtype = DType::kFloat32;
    b.model().arguments.push_back(std::move(a));
  }
  return b.take();
}

}  // namespace

Model numerics_model(const Json& model, DType compute) {
  const std::string kind = model.at("kind").get<std::string>();
  if (kind == "mlp") return build_mlp(model);
  if (kind == "llama" || kind == "gpt2") return DecoderBuilder(model, compute).build();
  throw InputError(
      Issue{"", "config.model.kind", "unknown kind of model '" + kind + "'", "llama, gpt2 or mlp"});
}

double numerics_buffer_value(const Json& model, const std::vector<std::int64_t>& shape,
                             std::int64_t index) {
  if (shape.empty())
    return std::sqrt(static_cast<double>(integer(model, "dim") / integer(model, "heads")));
  return index % shape.back() <= index / shape.back() ? 0.0
                                                      : -std::numeric_limits<double>::infinity();
}

}  // namespace foreshard
