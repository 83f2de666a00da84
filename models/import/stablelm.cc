// StableLM: LayerNorms, partial rotary, gated MLP without biases, on request one norm for each
// head of q and k and a parallel residual. Source: transformers 5.24
// models/stablelm/modeling_stablelm.py.

#include "models/import/families.h"

namespace foreshard {
namespace {

struct StableLm {
  DecoderSpec spec;
  double dropout = 0.0;
  bool qk_norm = false, parallel = false;
};

/// StableLmLayerNormPerHead: heads apart, a norm without bias for each, and together again.
ModuleId add_head_norms(ModelBuilder& b, ModuleId parent, const std::string& name,
                        std::int64_t heads, std::int64_t dim, double eps) {
  const ModuleId id = b.add_module(parent, name, "StableLmLayerNormPerHead");
  const ModuleId list = b.add_module(id, "norms", "ModuleList");
  b.model().at(list).has_forward = false;
  std::vector<ModuleId> norms;
  std::vector<std::string> heads_in, heads_out;
  for (std::int64_t i = 0; i < heads; ++i) {
    norms.push_back(b.layer_norm(list, std::to_string(i), dim, false, eps));
    heads_in.push_back("states_" + std::to_string(i));
    heads_out.push_back("normed_" + std::to_string(i));
  }
  Program p(b, id, {"hidden_states"});
  // Items of a Python list go from its end.
  for (auto out = heads_out.rbegin(); out != heads_out.rend(); ++out) b.value(id, *out);
  p.ops(Function::kChunk, {"hidden_states"}, {1, heads}, heads_in);
  for (std::size_t i = 0; i < norms.size(); ++i) p.call(norms[i], {heads_in[i]}, heads_out[i]);
  p.returns({p.cat(heads_out, 1)});
  return id;
}

ModuleId add_attention(ModelBuilder& b, ModuleId block, const StableLm& s) {
  const AttentionSpec& a = s.spec.attention;
  const ModuleId id = b.add_module(block, "self_attn", "StableLmAttention");
  const std::int64_t width = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  const ModuleId q = b.linear(id, "q_proj", s.spec.hidden, width, a.qkv_bias);
  const ModuleId k = b.linear(id, "k_proj", s.spec.hidden, kv, a.qkv_bias);
  const ModuleId v = b.linear(id, "v_proj", s.spec.hidden, kv, a.qkv_bias);
  const ModuleId o = b.linear(id, "o_proj", s.spec.hidden, s.spec.hidden, false);
  PartialRotaryAttention parts{q, k, v, o, {}, {}, true};
  if (s.qk_norm) {
    parts.q_norm = add_head_norms(b, id, "q_layernorm", a.heads, a.head_dim, s.spec.norm_eps);
    parts.k_norm = add_head_norms(b, id, "k_layernorm", a.kv_heads, a.head_dim, s.spec.norm_eps);
  }
  write_partial_rotary_attention(b, id, a, parts);
  return id;
}

ModuleId add_block(ModelBuilder& b, ModuleId list, const StableLm& s, std::int64_t layer) {
  const DecoderSpec& spec = s.spec;
  const ModuleId id = b.add_module(list, std::to_string(layer), "StableLmDecoderLayer");
  const ModuleId attention = add_attention(b, id, s);
  const ModuleId mlp =
      gated_mlp(b, id, "mlp", "StableLmMLP", spec.hidden, spec.ffn, false, spec.activation);
  const ModuleId first = b.layer_norm(id, "input_layernorm", spec.hidden, true, spec.norm_eps);
  ModuleId second;
  if (!s.parallel)
    second = b.layer_norm(id, "post_attention_layernorm", spec.hidden, true, spec.norm_eps);
  Program p(b, id, block_inputs(spec));
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(first, {"hidden_states"}, "hidden_states");
  p.call(attention, {"hidden_states", "cos", "sin", "attention_mask"}, "self_attn_output");
  if (!s.parallel) p.add("residual", "self_attn_output", "residual");
  p.call(mlp, {s.parallel ? Program::Value("hidden_states") : p.call(second, {"residual"})},
         "mlp_output");
  if (s.dropout > 0) p.dropout("mlp_output", s.dropout, "mlp_output");
  p.add(s.parallel ? p.add("residual", "self_attn_output") : Program::Value("residual"),
        "mlp_output", "hidden_states");
  p.returns({"hidden_states"});
  return id;
}

}  // namespace

Model import_stablelm(HfConfig& config) {
  DecoderDefaults defaults{50304, 2560, 6912, 32, 32, 32, false, {}, 1e-5, true};
  defaults.eps_key = "layer_norm_eps";
  defaults.own_head_dim = false;
  StableLm s;
  s.spec = read_decoder(config, "StableLm", defaults);
  s.spec.norm = DecoderSpec::Norm::kLayer;
  s.spec.positions_before_table = true;
  s.spec.attention.qkv_bias = config.flag("use_qkv_bias", false);
  s.dropout = config.probability("hidden_dropout", 0.0);
  s.qk_norm = config.flag("qk_layernorm", false);
  s.parallel = config.flag("use_parallel_residual", false);
  read_partial_rotary(config, s.spec, 0.25);
  const bool tied = read_tied(config, false);
  config.finish();
  if (!config.usable()) return {};
  s.spec.block = [&](ModelBuilder& b, ModuleId list, std::int64_t layer) {
    return add_block(b, list, s, layer);
  };
  return causal_model("StableLmForCausalLM", "model", s.spec, {tied, std::nullopt, false});
}

}  // namespace foreshard
