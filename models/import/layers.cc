#include "models/import/layers.h"

#include <array>
#include <cmath>
#include <numbers>

#include "models/import/hf_config.h"

namespace foreshard {
namespace {

struct NamedActivation {
  const char* name;
  Activation activation;
};
constexpr std::array<NamedActivation, 11> kActivations = {
    {{"silu", Activation::kSilu},
     {"swish", Activation::kSilu},
     {"gelu", Activation::kGelu},
     {"gelu_pytorch_tanh", Activation::kGeluTanh},
     {"gelu_new", Activation::kGeluNew},
     {"relu", Activation::kRelu},
     {"quick_gelu", Activation::kQuickGelu},
     {"tanh", Activation::kTanh},
     {"sigmoid", Activation::kSigmoid},
     {"gelu_tanh", Activation::kGeluTanh},
     {"gelu_fast", Activation::kGeluFast}}};

// NewGELUActivation: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), six kernels.
Program::Value gelu_new(Program& p, const Program::Value& x, const Program::Value& out) {
  const Program::Value half = p.mul_scalar(x, 0.5);
  const Program::Value cubic = p.mul_scalar(p.pow(x, 3.0), 0.044715);
  const Program::Value inner = p.mul_scalar(p.add(x, cubic), std::sqrt(2.0 / std::numbers::pi));
  return p.mul(half, p.add_scalar(p.op(Function::kTanh, {inner}), 1.0), out);
}

// FastGELUActivation: 0.5 x (1 + tanh(0.7978845608 x (1 + 0.044715 x x))), nine kernels.
Program::Value gelu_fast(Program& p, const Program::Value& x, const Program::Value& out) {
  const Program::Value half = p.mul_scalar(x, 0.5), scaled = p.mul_scalar(x, 0.7978845608);
  const Program::Value square = p.mul(p.mul_scalar(x, 0.044715), x);
  const Program::Value inner = p.mul(scaled, p.add_scalar(square, 1.0));
  return p.mul(half, p.add_scalar(p.op(Function::kTanh, {inner}), 1.0), out);
}

Program::Value rotate_half(Program& p, const Program::Value& x, std::int64_t width) {
  const Program::Value first = p.slice(x, -1, 0, width / 2);
  const Program::Value second = p.slice(x, -1, width / 2, width);
  return p.cat({p.op(Function::kNeg, {second}), first}, -1);
}

Program::Value rotate(Program& p, const Program::Value& x, const Program::Value& cos,
                      const Program::Value& sin, std::int64_t rotated) {
  const Program::Value straight = p.mul(x, cos);
  return p.add(straight, p.mul(rotate_half(p, x, rotated), sin));
}

void eager_attention(Program& p, const AttentionCall& call) {
  std::string key = "key_states", value = "value_states";
  if (call.repeats > 1) {
    key = p.op_ints(Function::kRepeatKv, {key}, {call.repeats}, "repeated_key");
    value = p.op_ints(Function::kRepeatKv, {value}, {call.repeats}, "repeated_value");
  }
  const std::string w = "attn_weights";
  const auto product = [&](std::int64_t which, const std::string& a, const std::string& b,
                           const std::string& out) {
    std::vector<std::int64_t> hidden;
    if (call.causal) hidden = {which, call.window};
    return p.op_ints(Function::kMatmul, {a, b}, std::move(hidden), out);
  };
  p.mul_scalar(product(1, "query_states", p.transpose(key, 2, 3), ""), call.scale, w);
  if (call.softcap) {
    p.mul_scalar(w, 1.0 / *call.softcap, w);
    p.op(Function::kTanh, {w}, w);
    p.mul_scalar(w, *call.softcap, w);
  }
  if (!call.mask.empty()) p.add(w, call.mask, w);
  p.cast_like(p.softmax(w, DType::kFloat32), "query_states", w);
  if (call.dropout > 0) p.dropout(w, call.dropout, w);
  product(2, w, value, "attn_output");
}

}  // namespace

std::optional<Activation> parse_activation(const std::string& name) {
  for (const NamedActivation& a : kActivations) {
    if (name == a.name) return a.activation;
  }
  return std::nullopt;
}

Activation read_activation(HfConfig& config, std::string_view key, const std::string& fallback) {
  std::vector<std::string> names;
  for (const NamedActivation& a : kActivations) names.emplace_back(a.name);
  return parse_activation(config.choice(key, fallback, names)).value_or(Activation::kSilu);
}

Program::Value activate(Program& p, Activation activation, const Program::Value& x,
                        const Program::Value& out) {
  switch (activation) {
    case Activation::kSilu:
      return p.op(Function::kSilu, {x}, out);
    case Activation::kGelu:
      return p.op_ints(Function::kGelu, {x}, {0}, out);
    case Activation::kGeluTanh:
      return p.op_ints(Function::kGelu, {x}, {1}, out);
    case Activation::kRelu:
      return p.op(Function::kRelu, {x}, out);
    case Activation::kTanh:
      return p.op(Function::kTanh, {x}, out);
    case Activation::kSigmoid:
      return p.op(Function::kSigmoid, {x}, out);
    case Activation::kQuickGelu:
      return p.mul(x, p.op(Function::kSigmoid, {p.mul_scalar(x, 1.702)}), out);
    case Activation::kGeluNew:
      return gelu_new(p, x, out);
    case Activation::kGeluFast:
      return gelu_fast(p, x, out);
  }
  return x;
}

ModuleId rms_norm_module(ModelBuilder& b, ModuleId parent, const std::string& name,
                         const std::string& class_name, std::int64_t dim, double eps,
                         NormStyle style) {
  const ModuleId id = b.add_module(parent, name, class_name);
  const ParameterId weight = b.add_parameter(id, "weight", {dim});
  Program p(b, id, {"x"});
  const Program::Value wide = style == NormStyle::kT5
                                  ? p.cast("x", DType::kFloat32)
                                  : p.cast("x", DType::kFloat32, "hidden_states");
  // Gemma's sum of squares is part of an expression, the others' a variable of the frame.
  const Program::Value variance =
      p.op(Function::kMeanLast, {p.pow(wide, 2.0)},
           style == NormStyle::kGemma ? Program::Value() : Program::Value("variance"));
  const Program::Value inverse = p.op(Function::kRsqrt, {p.add_scalar(variance, eps)});
  switch (style) {
    case NormStyle::kLlama:
      p.mul("hidden_states", inverse, "hidden_states");
      p.returns({p.mul(p.parameter(weight), p.cast_like("hidden_states", "x"))});
      break;
    case NormStyle::kGemma:
      p.mul("hidden_states", inverse, "output");
      p.mul("output", p.add_scalar(p.cast(p.parameter(weight), DType::kFloat32), 1.0), "output");
      p.returns({p.cast_like("output", "x")});
      break;
    case NormStyle::kT5: {
      const Program::Value scale = p.parameter(weight);
      p.mul("x", inverse, "hidden_states");
      p.cast_like("hidden_states", scale, "hidden_states");
      p.returns({p.mul(scale, "hidden_states")});
      break;
    }
  }
  return id;
}

ModuleId gated_mlp(ModelBuilder& b, ModuleId parent, const std::string& name,
                   const std::string& class_name, std::int64_t hidden, std::int64_t ffn, bool bias,
                   Activation activation) {
  const ModuleId id = b.add_module(parent, name, class_name);
  const ModuleId gate = b.linear(id, "gate_proj", hidden, ffn, bias);
  const ModuleId up = b.linear(id, "up_proj", hidden, ffn, bias);
  const ModuleId down = b.linear(id, "down_proj", ffn, hidden, bias);
  Program p(b, id, {"x"});
  const Program::Value gated = activate(p, activation, p.call(gate, {"x"}));
  p.returns({p.call(down, {p.mul(gated, p.call(up, {"x"}))})});
  return id;
}

ModuleId plain_mlp(ModelBuilder& b, ModuleId parent, const std::string& name,
                   const std::string& class_name, const std::string& first,
                   const std::string& second, std::int64_t hidden, std::int64_t ffn,
                   Activation activation) {
  const ModuleId id = b.add_module(parent, name, class_name);
  const ModuleId in = b.linear(id, first, hidden, ffn, true);
  const ModuleId out = b.linear(id, second, ffn, hidden, true);
  Program p(b, id, {"hidden_states"});
  p.call(in, {"hidden_states"}, "hidden_states");
  activate(p, activation, "hidden_states", "hidden_states");
  p.call(out, {"hidden_states"}, "hidden_states");
  p.returns({"hidden_states"});
  return id;
}

ModuleId patch_convolution(ModelBuilder& b, ModuleId parent, const std::string& name,
                           std::int64_t channels, std::int64_t filters, std::int64_t patch,
                           bool bias, std::int64_t time) {
  const ModuleId id = b.add_module(parent, name, time > 0 ? "Conv3d" : "Conv2d");
  std::vector<std::int64_t> shape{filters, channels, patch, patch};
  if (time > 0) shape.insert(shape.begin() + 2, time);
  std::vector<ParameterId> parameters{b.add_parameter(id, "weight", shape)};
  if (bias) parameters.push_back(b.add_parameter(id, "bias", {filters}));
  Program p(b, id, {"input"});
  p.op_ints(Function::kConv2d, {p.cast_like("input", p.parameter(parameters[0]), "input")},
            {patch, 0}, "output");
  p.last().parameters = parameters;
  p.returns({"output"});
  return id;
}

ModuleId rotary_module(ModelBuilder& b, ModuleId parent, const std::string& name,
                       const std::string& class_name, std::int64_t width, bool long_rope) {
  const ModuleId id = b.add_module(parent, name, class_name);
  for (const char* buffer : {"inv_freq", "original_inv_freq"}) {
    b.model().at(id).buffers.push_back({buffer, {width / 2}, DType::kFloat32, false});
  }
  Program p(b, id, {"x", "position_ids"});
  p.ops(Function::kRotaryTable, {"x", "position_ids"}, {width, long_rope ? 1 : 0}, {"cos", "sin"});
  p.returns({"cos", "sin"});
  return id;
}

void apply_rotary(Program& p, const Program::Value& q, const Program::Value& k,
                  const Program::Value& cos, const Program::Value& sin, std::int64_t rotated,
                  RotaryCat cat) {
  const Program::Value c = p.op_ints(Function::kUnsqueeze, {cos}, {1}, "unsqueezed_cos");
  const Program::Value s = p.op_ints(Function::kUnsqueeze, {sin}, {1}, "unsqueezed_sin");
  if (cat == RotaryCat::kNever) {
    const Program::Value q_embed = rotate(p, q, c, s, rotated);
    const Program::Value k_embed = rotate(p, k, c, s, rotated);
    p.ops(Function::kAssign, {q_embed, k_embed}, {}, {q, k});
    return;
  }
  const Program::Value q_rot = p.slice(q, -1, 0, rotated, "q_rot"),
                       q_pass = p.slice(q, -1, rotated, -1, "q_pass");
  const Program::Value k_rot = p.slice(k, -1, 0, rotated, "k_rot"),
                       k_pass = p.slice(k, -1, rotated, -1, "k_pass");
  if (cat == RotaryCat::kBothThenCat) {
    const Program::Value q_turned = rotate(p, q_rot, c, s, rotated);
    const Program::Value k_turned = rotate(p, k_rot, c, s, rotated);
    p.ops(Function::kAssign, {q_turned, k_turned}, {}, {q_rot, k_rot});
    p.cat({q_rot, q_pass}, -1, q);
    p.cat({k_rot, k_pass}, -1, k);
    return;
  }
  const Program::Value q_embed = p.cat({rotate(p, q_rot, c, s, rotated), q_pass}, -1);
  const Program::Value k_embed = p.cat({rotate(p, k_rot, c, s, rotated), k_pass}, -1);
  p.ops(Function::kAssign, {q_embed, k_embed}, {}, {q, k});
}

void attend(Program& p, const AttentionCall& call) {
  if (call.eager) {
    eager_attention(p, call);
  } else {
    std::vector<std::string> inputs{"query_states", "key_states", "value_states"};
    if (!call.mask.empty()) inputs.push_back(call.mask);
    p.op_ints(Function::kAttention, inputs, {call.causal ? 1 : 0, call.window}, "attn_output");
    p.last().floats = {call.dropout, call.scale};
  }
  p.op(Function::kContiguous, {p.transpose("attn_output", 1, 2)}, "attn_output");
}

void write_partial_rotary_attention(ModelBuilder& b, ModuleId id, const AttentionSpec& spec,
                                    const PartialRotaryAttention& parts) {
  Program p(b, id, {"hidden_states", "cos", "sin", "attention_mask"});
  const std::pair<ModuleId, std::string> projections[] = {
      {parts.q, "query_states"}, {parts.k, "key_states"}, {parts.v, "value_states"}};
  const auto heads = [&](const Program::Value& x, const std::string& out) {
    p.transpose(p.view(x, {0, 0, -1, spec.head_dim}), 1, 2, out);
  };
  for (const auto& [projection, out] : projections) {
    if (parts.projected_first) {
      p.call(projection, {"hidden_states"}, out);
    } else {
      heads(p.call(projection, {"hidden_states"}), out);
    }
  }
  if (parts.projected_first)
    for (const auto& [projection, out] : projections) heads(out, out);
  if (parts.q_norm.valid()) p.call(parts.q_norm, {"query_states"}, "query_states");
  if (parts.k_norm.valid()) p.call(parts.k_norm, {"key_states"}, "key_states");
  apply_rotary(p, "query_states", "key_states", "cos", "sin", spec.rotary, RotaryCat::kBothThenCat);
  AttentionCall call = spec.call;
  call.mask = "attention_mask";
  attend(p, call);
  p.reshape("attn_output", {0, 0, -1}, "attn_output");
  p.call(parts.out, {"attn_output"}, "attn_output");
  p.returns({"attn_output"});
}

ModuleId attention_module(ModelBuilder& b, ModuleId parent, const std::string& name,
                          const AttentionSpec& spec) {
  const ModuleId id = b.add_module(parent, name, spec.class_name);
  const std::int64_t q_width = spec.heads * spec.head_dim, kv_width = spec.kv_heads * spec.head_dim;
  ModuleId q, k, v, o, q_norm, k_norm;
  for (const std::string& projection : spec.order) {
    if (projection == spec.q) q = b.linear(id, projection, spec.hidden, q_width, spec.qkv_bias);
    if (projection == spec.k) k = b.linear(id, projection, spec.hidden, kv_width, spec.qkv_bias);
    if (projection == spec.v) v = b.linear(id, projection, spec.hidden, kv_width, spec.qkv_bias);
    if (projection == spec.o) o = b.linear(id, projection, q_width, spec.hidden, spec.out_bias);
  }
  const bool early = spec.qk_norm == AttentionSpec::QkNorm::kBeforeTranspose;
  const bool late = spec.qk_norm == AttentionSpec::QkNorm::kAfterTranspose;
  if (early || late) {
    q_norm = rms_norm_module(b, id, "q_norm", spec.norm_class, spec.head_dim, spec.norm_eps,
                             spec.norm_style);
    k_norm = rms_norm_module(b, id, "k_norm", spec.norm_class, spec.head_dim, spec.norm_eps,
                             spec.norm_style);
  }

  std::vector<std::string> inputs{"hidden_states"};
  if (spec.rotary > 0) inputs.insert(inputs.end(), {"cos", "sin"});
  if (spec.takes_mask) inputs.push_back("attention_mask");
  Program p(b, id, inputs);
  const auto project = [&](ModuleId projection, ModuleId norm, const std::string& out) {
    Program::Value x = p.view(p.call(projection, {"hidden_states"}), {0, 0, -1, spec.head_dim});
    if (early && norm.valid()) x = p.call(norm, {x});
    p.transpose(x, 1, 2, out);
  };
  project(q, q_norm, "query_states");
  project(k, k_norm, "key_states");
  project(v, {}, "value_states");
  if (late) {
    p.call(q_norm, {"query_states"}, "query_states");
    p.call(k_norm, {"key_states"}, "key_states");
  }
  if (spec.rotary > 0)
    apply_rotary(p, "query_states", "key_states", "cos", "sin", spec.rotary, RotaryCat::kNever);
  AttentionCall call = spec.call;
  if (spec.takes_mask) call.mask = "attention_mask";
  attend(p, call);
  p.reshape("attn_output", {0, 0, -1}, "attn_output");
  p.call(o, {"attn_output"}, "attn_output");
  p.returns({"attn_output"});
  return id;
}

}  // namespace foreshard
