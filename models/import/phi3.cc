// Phi-3: fused qkv_proj (registered after o_proj) and gate_up_proj, partial rotary that
// concatenates.

#include "models/import/families.h"

namespace foreshard {
namespace {

struct Phi3 {
  DecoderSpec spec;
  double residual_dropout = 0.0;
};

ModuleId add_attention(ModelBuilder& b, ModuleId block, const Phi3& phi) {
  const AttentionSpec& a = phi.spec.attention;
  const ModuleId id = b.add_module(block, "self_attn", "Phi3Attention");
  const std::int64_t q_width = a.heads * a.head_dim, kv_width = a.kv_heads * a.head_dim;
  const ModuleId o = b.linear(id, "o_proj", q_width, phi.spec.hidden, false);
  const ModuleId qkv = b.linear(id, "qkv_proj", phi.spec.hidden, q_width + 2 * kv_width, false);
  Program p(b, id, {"hidden_states", "cos", "sin", "attention_mask"});
  p.call(qkv, {"hidden_states"}, "qkv");
  p.slice("qkv", -1, 0, q_width, "query_states");
  p.slice("qkv", -1, q_width, q_width + kv_width, "key_states");
  p.slice("qkv", -1, q_width + kv_width, -1, "value_states");
  for (const char* x : {"query_states", "key_states", "value_states"})
    p.transpose(p.view(x, {0, 0, -1, a.head_dim}), 1, 2, x);
  apply_rotary(p, "query_states", "key_states", "cos", "sin", a.rotary, RotaryCat::kSumThenCat);
  AttentionCall call = a.call;
  call.mask = "attention_mask";
  attend(p, call);
  p.reshape("attn_output", {0, 0, -1}, "attn_output");
  p.call(o, {"attn_output"}, "attn_output");
  p.returns({"attn_output"});
  return id;
}

ModuleId add_mlp(ModelBuilder& b, ModuleId block, const DecoderSpec& spec) {
  const ModuleId id = b.add_module(block, "mlp", "Phi3MLP");
  const ModuleId gate_up = b.linear(id, "gate_up_proj", spec.hidden, 2 * spec.ffn, false);
  const ModuleId down = b.linear(id, "down_proj", spec.ffn, spec.hidden, false);
  Program p(b, id, {"hidden_states"});
  p.call(gate_up, {"hidden_states"}, "up_states");
  p.ops(Function::kChunk, {"up_states"}, {-1, 2}, {"gate", "up_states"});
  p.mul("up_states", activate(p, spec.activation, "gate"), "up_states");
  p.returns({p.call(down, {"up_states"})});
  return id;
}

}  // namespace

Model import_phi3(HfConfig& config) {
  DecoderDefaults defaults{32064, 3072, 8192, 32, 32, {}, true, {}, 1e-5, false};
  Phi3 phi;
  phi.spec = read_decoder(config, "Phi3", defaults);
  phi.residual_dropout = config.probability("resid_pdrop", 0.0);
  config.probability("embd_pdrop", 0.0);  // Declared, never applied.
  config.ignore({"original_max_position_embeddings"});
  HfConfig rope = config.nested(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  const std::string kind = rope.text(rope.has("rope_type") ? "rope_type" : "type", "default");
  phi.spec.positions_before_table = true;
  phi.spec.long_rope = kind == "longrope" || kind == "su" || kind == "yarn";
  const double factor = config.number("partial_rotary_factor", 1.0, 0.0, 1.0);
  phi.spec.attention.rotary =
      static_cast<std::int64_t>(static_cast<double>(phi.spec.attention.head_dim) * factor);
  if (phi.spec.attention.rotary < 2 || phi.spec.attention.rotary % 2 != 0) {
    config.problem("partial_rotary_factor", "leaves no even rotary width",
                   "head_dim times it must be even and positive");
  }
  if (const auto window = config.optional_size("sliding_window", std::nullopt, INT32_MAX)) {
    phi.spec.windows.assign(static_cast<std::size_t>(phi.spec.layers), *window);
  }
  const bool tied = read_tied(config, false);
  config.finish();
  if (!config.usable()) return {};
  phi.spec.mixer = [&](ModelBuilder& b, ModuleId block, std::int64_t) {
    return DecoderSpec::Mixer{"self_attn", add_attention(b, block, phi), true};
  };
  phi.spec.mlp = [&](ModelBuilder& b, ModuleId block, std::int64_t) {
    return add_mlp(b, block, phi.spec);
  };
  phi.spec.residual_dropout = phi.residual_dropout;
  return causal_model("Phi3ForCausalLM", "model", phi.spec, {tied, std::nullopt});
}

}  // namespace foreshard
