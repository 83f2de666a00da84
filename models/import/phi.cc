// Phi-1, 1.5 and 2: one LayerNorm in front of attention and MLP side by side, partial rotary,
// biases everywhere. Source: transformers 5.24 models/phi/modeling_phi.py.

#include "models/import/families.h"

namespace foreshard {
namespace {

struct Phi {
  DecoderSpec spec;
  double residual_dropout = 0.0;
  bool qk_norm = false;
};

ModuleId add_attention(ModelBuilder& b, ModuleId block, const Phi& phi) {
  const AttentionSpec& a = phi.spec.attention;
  const ModuleId id = b.add_module(block, "self_attn", "PhiAttention");
  const std::int64_t width = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  const ModuleId q = b.linear(id, "q_proj", phi.spec.hidden, width, true);
  const ModuleId k = b.linear(id, "k_proj", phi.spec.hidden, kv, true);
  const ModuleId v = b.linear(id, "v_proj", phi.spec.hidden, kv, true);
  const ModuleId dense = b.linear(id, "dense", width, phi.spec.hidden, true);
  PartialRotaryAttention parts{q, k, v, dense, {}, {}};
  if (phi.qk_norm) {
    parts.q_norm = b.layer_norm(id, "q_layernorm", a.head_dim, true, phi.spec.norm_eps);
    parts.k_norm = b.layer_norm(id, "k_layernorm", a.head_dim, true, phi.spec.norm_eps);
  }
  write_partial_rotary_attention(b, id, a, parts);
  return id;
}

ModuleId add_block(ModelBuilder& b, ModuleId list, const Phi& phi, std::int64_t layer) {
  const DecoderSpec& spec = phi.spec;
  const ModuleId id = b.add_module(list, std::to_string(layer), "PhiDecoderLayer");
  const ModuleId attention = add_attention(b, id, phi);
  const ModuleId mlp =
      plain_mlp(b, id, "mlp", "PhiMLP", "fc1", "fc2", spec.hidden, spec.ffn, spec.activation);
  const ModuleId norm = b.layer_norm(id, "input_layernorm", spec.hidden, true, spec.norm_eps);
  Program p(b, id, block_inputs(spec));
  p.op(Function::kAssign, {"hidden_states"}, "residual");
  p.call(norm, {"hidden_states"}, "hidden_states");
  p.call(attention, {"hidden_states", "cos", "sin", "attention_mask"}, "attn_outputs");
  const double drop = phi.residual_dropout;
  if (drop > 0) p.dropout("attn_outputs", drop, "attn_outputs");
  if (drop > 0) {
    p.dropout(p.call(mlp, {"hidden_states"}), drop, "feed_forward_hidden_states");
  } else {
    p.call(mlp, {"hidden_states"}, "feed_forward_hidden_states");
  }
  p.add(p.add("attn_outputs", "feed_forward_hidden_states"), "residual", "hidden_states");
  p.returns({"hidden_states"});
  return id;
}

}  // namespace

Model import_phi(HfConfig& config) {
  DecoderDefaults defaults{51200, 2048, 8192, 24, 32, {}, true, {}, 1e-5, false};
  defaults.eps_key = "layer_norm_eps";
  Phi phi;
  phi.spec = read_decoder(config, "Phi", defaults, "hidden_act", "gelu_new");
  phi.spec.norm = DecoderSpec::Norm::kLayer;
  phi.spec.final_norm = "final_layernorm";
  phi.spec.positions_before_table = true;
  phi.spec.embedding_dropout = config.probability("embd_pdrop", 0.0);
  phi.residual_dropout = config.probability("resid_pdrop", 0.0);
  phi.qk_norm = config.flag("qk_layernorm", false);
  read_partial_rotary(config, phi.spec, 0.5);
  const bool tied = read_tied(config, false);
  config.finish();
  if (!config.usable()) return {};
  phi.spec.block = [&](ModelBuilder& b, ModuleId list, std::int64_t layer) {
    return add_block(b, list, phi, layer);
  };
  return causal_model("PhiForCausalLM", "model", phi.spec, {tied, std::nullopt, true});
}

}  // namespace foreshard
