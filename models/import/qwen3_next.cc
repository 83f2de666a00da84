// Qwen3-Next: linear attention (gated delta rule) in three of four blocks, gated full attention in
// the fourth, experts.

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "models/import/families.h"
#include "models/import/moe.h"

namespace foreshard {
namespace {

constexpr std::int64_t kChunk = 64;  // chunk_size of torch_chunk_gated_delta_rule.

struct Linear {
  std::int64_t key_heads, value_heads, key_dim, value_dim, kernel, hidden;
  double eps;
  Activation activation;

  std::int64_t keys() const { return key_heads * key_dim; }
  std::int64_t values() const { return value_heads * value_dim; }
  std::int64_t channels() const { return 2 * keys() + values(); }
  std::int64_t ratio() const { return value_heads / key_heads; }
};

/// weight * norm(x) * silu(gate in fp32), back in x's dtype.
ModuleId add_gated_norm(ModelBuilder& b, ModuleId parent, const Linear& l) {
  const ModuleId id = b.add_module(parent, "norm", "Qwen3NextRMSNormGated");
  const ParameterId weight = b.add_parameter(id, "weight", {l.value_dim});
  Program p(b, id, {"x", "gate"});
  p.cast("x", DType::kFloat32, "hidden_states");
  p.op(Function::kMeanLast, {p.pow("hidden_states", 2.0)}, "variance");
  p.mul("hidden_states", p.op(Function::kRsqrt, {p.add_scalar("variance", l.eps)}),
        "hidden_states");
  p.mul(p.parameter(weight), p.cast_like("hidden_states", "x"), "hidden_states");
  p.mul("hidden_states", p.op(Function::kSilu, {p.cast("gate", DType::kFloat32)}), "hidden_states");
  p.returns({p.cast_like("hidden_states", "x")});
  return id;
}

/// A Conv1d whose weight alone is used; its forward never runs.
ParameterId add_convolution(ModelBuilder& b, ModuleId parent, const Linear& l) {
  const ModuleId id = b.add_module(parent, "conv1d", "Conv1d");
  b.model().at(id).has_forward = false;
  return b.add_parameter(id, "weight", {l.channels(), 1, l.kernel});
}

/// causal_conv1d_fn without kernels from the hub: x in the weight's dtype, the first tokens of the
/// padded result, and back in x's dtype.
void convolve(Program& p, const Linear& l, ParameterId weight) {
  const Program::Value filters = p.view(p.parameter(weight), {l.channels(), l.kernel});
  const Program::Value x = p.cast_like("mixed_qkv", filters);
  const Program::Value padded = p.op_ints(
      Function::kConv1dDepthwise, {x, p.view(filters, {0, 1, l.kernel})}, {l.kernel - 1});
  const Program::Value out =
      p.op_ints(Function::kSliceLike, {padded, "hidden_states"}, {2, 1});
  p.cast_like(activate(p, l.activation, out), "mixed_qkv", "mixed_qkv");
}

/// q, k, v, z of one projection and b, a of another, interleaved by key head.
void split_projections(Program& p, const Linear& l) {
  const std::int64_t group = l.ratio() * l.value_dim;
  p.view("mixed_qkvz", {0, 0, l.key_heads, -1}, "mixed_qkvz");
  p.view("mixed_ba", {0, 0, l.key_heads, -1}, "mixed_ba");
  p.ops(Function::kSplit, {"mixed_qkvz"}, {3, l.key_dim, l.key_dim, group, group},
        {"query", "key", "value", "z"});
  p.ops(Function::kSplit, {"mixed_ba"}, {3, l.ratio(), l.ratio()}, {"b", "a"});
  p.reshape("value", {0, 0, -1, l.value_dim}, "value");
  p.reshape("z", {0, 0, -1, l.value_dim}, "z");
  for (const char* x : {"b", "a"}) p.reshape(x, {0, 0, l.value_heads}, x);
  for (const char* x : {"query", "key", "value"}) p.reshape(x, {0, 0, -1}, x);
}

ModuleId add_linear_attention(ModelBuilder& b, ModuleId block, const Linear& l) {
  const ModuleId id = b.add_module(block, "linear_attn", "Qwen3NextGatedDeltaNet");
  const ParameterId dt_bias = b.add_parameter(id, "dt_bias", {l.value_heads});
  const ParameterId a_log = b.add_parameter(id, "A_log", {l.value_heads});
  const ParameterId convolution = add_convolution(b, id, l);
  const ModuleId qkvz =
      b.linear(id, "in_proj_qkvz", l.hidden, 2 * l.keys() + 2 * l.values(), false);
  const ModuleId ba = b.linear(id, "in_proj_ba", l.hidden, 2 * l.value_heads, false);
  const ModuleId norm = add_gated_norm(b, id, l);
  const ModuleId out = b.linear(id, "out_proj", l.values(), l.hidden, false);
  Program p(b, id, {"hidden_states"});
  p.call(qkvz, {"hidden_states"}, "mixed_qkvz");
  p.call(ba, {"hidden_states"}, "mixed_ba");
  split_projections(p, l);
  p.transpose(p.cat({"query", "key", "value"}, -1), 1, 2, "mixed_qkv");
  convolve(p, l, convolution);
  p.transpose("mixed_qkv", 1, 2, "mixed_qkv");
  p.ops(Function::kSplit, {"mixed_qkv"}, {-1, l.keys(), l.keys(), l.values()},
        {"query", "key", "value"});
  for (const char* x : {"query", "key"}) p.reshape(x, {0, 0, -1, l.key_dim}, x);
  p.reshape("value", {0, 0, -1, l.value_dim}, "value");
  p.op(Function::kSigmoid, {"b"}, "beta");
  const Program::Value rate =
      p.op(Function::kNeg, {p.op(Function::kExp, {p.cast(p.parameter(a_log), DType::kFloat32)})});
  const Program::Value step = p.add(p.cast("a", DType::kFloat32), p.parameter(dt_bias));
  p.mul(rate, p.op(Function::kSoftplus, {step}), "g");
  p.op_ints(Function::kGatedDeltaRule, {"query", "key", "value", "g", "beta"}, {kChunk},
            "core_attn_out");
  p.reshape("core_attn_out", {-1, l.value_dim}, "core_attn_out");
  p.call(norm, {"core_attn_out", p.reshape("z", {-1, l.value_dim})}, "core_attn_out");
  p.op(Function::kViewLike, {"core_attn_out", "z"}, "core_attn_out");
  p.returns({p.call(out, {p.reshape("core_attn_out", {0, 0, -1})})});
  return id;
}

/// Queries come with a gate of their size; only a part of each head turns.
ModuleId add_full_attention(ModelBuilder& b, ModuleId block, const DecoderSpec& spec) {
  const AttentionSpec& a = spec.attention;
  const ModuleId id = b.add_module(block, "self_attn", "Qwen3NextAttention");
  const std::int64_t width = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  const ModuleId q = b.linear(id, "q_proj", spec.hidden, 2 * width, a.qkv_bias);
  const ModuleId k = b.linear(id, "k_proj", spec.hidden, kv, a.qkv_bias);
  const ModuleId v = b.linear(id, "v_proj", spec.hidden, kv, a.qkv_bias);
  const ModuleId o = b.linear(id, "o_proj", width, spec.hidden, a.qkv_bias);
  const auto norm = [&](const char* name) {
    return rms_norm_module(b, id, name, "Qwen3NextRMSNorm", a.head_dim, spec.norm_eps,
                           NormStyle::kGemma);
  };
  const ModuleId q_norm = norm("q_norm"), k_norm = norm("k_norm");
  Program p(b, id, {"hidden_states", "cos", "sin", "attention_mask"});
  p.ops(Function::kChunk, {p.view(p.call(q, {"hidden_states"}), {0, 0, -1, 2 * a.head_dim})},
        {-1, 2}, {"query_states", "gate"});
  p.reshape("gate", {0, 0, -1}, "gate");
  p.transpose(p.call(q_norm, {p.view("query_states", {0, 0, -1, a.head_dim})}), 1, 2,
              "query_states");
  p.transpose(p.call(k_norm, {p.view(p.call(k, {"hidden_states"}), {0, 0, -1, a.head_dim})}), 1, 2,
              "key_states");
  p.transpose(p.view(p.call(v, {"hidden_states"}), {0, 0, -1, a.head_dim}), 1, 2, "value_states");
  apply_rotary(p, "query_states", "key_states", "cos", "sin", a.rotary, RotaryCat::kSumThenCat);
  AttentionCall call = a.call;
  call.mask = "attention_mask";
  attend(p, call);
  p.reshape("attn_output", {0, 0, -1}, "attn_output");
  p.mul("attn_output", p.op(Function::kSigmoid, {"gate"}), "attn_output");
  p.returns({p.call(o, {"attn_output"})});
  return id;
}

Linear read_linear(HfConfig& config, const DecoderSpec& spec) {
  Linear l;
  l.hidden = spec.hidden;
  l.eps = spec.norm_eps;
  l.activation = spec.activation;
  l.kernel = config.size("linear_conv_kernel_dim", 4, 1 << 10);
  l.key_dim = config.size("linear_key_head_dim", 128, 1 << 16);
  l.value_dim = config.size("linear_value_head_dim", 128, 1 << 16);
  l.key_heads = config.size("linear_num_key_heads", 16, 1 << 16);
  l.value_heads = config.size("linear_num_value_heads", 32, 1 << 16);
  config.require_multiple("linear_num_value_heads", l.value_heads, "linear_num_key_heads",
                          l.key_heads);
  return l;
}

/// True for layers with linear attention: "layer_types", else all but every
/// "full_attention_interval"-th.
std::vector<bool> read_linear_layers(HfConfig& config, std::int64_t layers) {
  const std::int64_t interval = config.size("full_attention_interval", 4, kLargestLayers);
  std::vector<bool> linear;
  for (std::int64_t i = 0; i < layers; ++i) linear.push_back((i + 1) % interval != 0);
  const auto types = config.texts("layer_types");
  if (!types) return linear;
  if (static_cast<std::int64_t>(types->size()) != layers) {
    config.problem("layer_types",
                   fmt::format("has {} entries for {} layers", types->size(), layers));
    return linear;
  }
  for (std::size_t i = 0; i < types->size(); ++i) {
    linear[i] = (*types)[i] == "linear_attention";
    if (!linear[i] && (*types)[i] != "full_attention") {
      config.problem("layer_types", fmt::format("entry {} is \"{}\"", i, (*types)[i]),
                     "linear_attention or full_attention");
    }
  }
  return linear;
}

}  // namespace

Model import_qwen3_next(HfConfig& config) {
  DecoderDefaults defaults{151936, 2048, 5632, 48, 16, 2, false, 256, 1e-6, false};
  DecoderSpec spec = read_decoder(config, "Qwen3Next", defaults);
  spec.norm_style = NormStyle::kGemma;
  spec.attention.qkv_bias = config.flag("attention_bias", false);
  read_partial_rotary(config, spec, 0.25);
  const Linear linear = read_linear(config, spec);
  const std::vector<bool> layers = read_linear_layers(config, spec.layers);
  const SparseMlp mlp = read_sparse_mlp(config, spec, {512, 512, 10, 512, true});
  const bool tied = read_tied(config, false);
  config.finish();
  if (!config.usable()) return {};
  spec.mlp = mlp;
  spec.mixer = [&](ModelBuilder& b, ModuleId block, std::int64_t i) {
    if (layers[static_cast<std::size_t>(i)])
      return DecoderSpec::Mixer{"linear_attn", add_linear_attention(b, block, linear), false};
    return DecoderSpec::Mixer{"self_attn", add_full_attention(b, block, spec), true};
  };
  return causal_model("Qwen3NextForCausalLM", "model", spec, {tied, std::nullopt});
}

}  // namespace foreshard
