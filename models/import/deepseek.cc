// DeepSeek-V3: multi-head latent attention, first blocks dense, sigmoid router with a correction
// bias (a buffer).

#include <cmath>

#include <fmt/core.h>

#include "models/import/families.h"
#include "models/import/moe.h"

namespace foreshard {
namespace {

struct Deepseek {
  DecoderSpec spec;
  MoeSpec moe;
  std::int64_t shared_experts, kv_rank, rope_dim, nope_dim, v_dim, groups, kept_groups, first_dense;
  std::optional<std::int64_t> q_rank;
  double scaling_factor, dropout, scale;
  bool normalise, attention_bias, interleave;

  std::int64_t heads() const { return spec.attention.heads; }
  std::int64_t qk_dim() const { return nope_dim + rope_dim; }
};

// q[..., 0::2] and q[..., 1::2] turn as pairs: cat([q1 cos - q2 sin, q2 cos + q1 sin]).
Program::Value rotate_interleaved(Program& p, const std::string& x, const std::string& cos,
                                  const std::string& sin) {
  const Program::Value first = p.op_ints(Function::kSlice, {x}, {-1, 0, -1, 2});
  const Program::Value second = p.op_ints(Function::kSlice, {x}, {-1, 1, -1, 2});
  const Program::Value left = p.op(Function::kSub, {p.mul(first, cos), p.mul(second, sin)});
  const Program::Value crossed = p.mul(second, cos);
  const Program::Value right = p.add(crossed, p.mul(first, sin));
  return p.cat({left, right}, -1);
}

void rotate_both(Program& p, const Deepseek& d) {
  if (!d.interleave) {
    apply_rotary(p, "q_rot", "k_rot", "cos", "sin", d.rope_dim, RotaryCat::kNever);
    return;
  }
  for (const char* x : {"cos", "sin"}) {
    p.op_ints(Function::kUnsqueeze, {p.slice(x, -1, 0, d.rope_dim / 2)}, {1},
              std::string("half_") + x);
  }
  const Program::Value q = rotate_interleaved(p, "q_rot", "half_cos", "half_sin");
  const Program::Value k = rotate_interleaved(p, "k_rot", "half_cos", "half_sin");
  p.ops(Function::kAssign, {q, k}, {}, {"q_rot", "k_rot"});
}

struct Projections {
  ModuleId q, q_a, q_norm, q_b, kv_a, kv_norm, kv_b, o;
};

Projections add_projections(ModelBuilder& b, ModuleId id, const Deepseek& d) {
  Projections m;
  const std::int64_t hidden = d.spec.hidden, q_width = d.heads() * d.qk_dim();
  if (d.q_rank) {
    m.q_a = b.linear(id, "q_a_proj", hidden, *d.q_rank, d.attention_bias);
    m.q_norm = rms_norm_module(b, id, "q_a_layernorm", "DeepseekV3RMSNorm", *d.q_rank, 1e-6,
                               NormStyle::kLlama);
    m.q_b = b.linear(id, "q_b_proj", *d.q_rank, q_width, false);
  } else {
    m.q = b.linear(id, "q_proj", hidden, q_width, false);
  }
  m.kv_a = b.linear(id, "kv_a_proj_with_mqa", hidden, d.kv_rank + d.rope_dim, d.attention_bias);
  m.kv_norm = rms_norm_module(b, id, "kv_a_layernorm", "DeepseekV3RMSNorm", d.kv_rank, 1e-6,
                              NormStyle::kLlama);
  m.kv_b = b.linear(id, "kv_b_proj", d.kv_rank, d.heads() * (d.nope_dim + d.v_dim), false);
  m.o = b.linear(id, "o_proj", d.heads() * d.v_dim, hidden, d.attention_bias);
  return m;
}

ModuleId add_attention(ModelBuilder& b, ModuleId block, const Deepseek& d) {
  const ModuleId id = b.add_module(block, "self_attn", "DeepseekV3Attention");
  const Projections m = add_projections(b, id, d);
  Program p(b, id, {"hidden_states", "cos", "sin", "attention_mask"});
  if (d.q_rank) {
    p.call(m.q_b, {p.call(m.q_norm, {p.call(m.q_a, {"hidden_states"})})}, "q_states");
  } else {
    p.call(m.q, {"hidden_states"}, "q_states");
  }
  p.transpose(p.view("q_states", {0, 0, -1, d.qk_dim()}), 1, 2, "q_states");
  p.ops(Function::kSplit, {"q_states"}, {-1, d.nope_dim, d.rope_dim}, {"q_pass", "q_rot"});
  p.call(m.kv_a, {"hidden_states"}, "compressed_kv");
  p.ops(Function::kSplit, {"compressed_kv"}, {-1, d.kv_rank, d.rope_dim}, {"kv_nope", "k_rot"});
  p.call(m.kv_norm, {"kv_nope"}, "kv_nope");
  for (const char* x : {"kv_nope", "k_rot"}) p.op_ints(Function::kUnsqueeze, {x}, {1}, x);
  rotate_both(p, d);
  p.cat({"q_pass", "q_rot"}, -1, "query_states");
  // The library copies both parts into an empty tensor of kv_nope's dtype; a concatenation moves
  // the same bytes and saves as little (under autocast k_rot is fp32: its cast is a temporary
  // more).
  p.call(m.kv_b, {"kv_nope"}, "kv");
  p.transpose(p.op_ints(Function::kView, {p.select("kv", 1, 0)}, {0, 0, -1, d.nope_dim + d.v_dim}),
              1, 2, "kv");
  p.ops(Function::kSplit, {"kv"}, {-1, d.nope_dim, d.v_dim}, {"k_nope", "value_states"});
  const Program::Value wide =
      p.op_ints(Function::kExpand, {p.cast_like("k_rot", "k_nope")}, {-1, d.heads(), -1, -1});
  p.cat({"k_nope", wide}, -1, "key_states");
  AttentionCall call;
  call.scale = d.scale;
  call.dropout = d.dropout;
  call.mask = "attention_mask";
  attend(p, call);
  p.reshape("attn_output", {0, 0, -1}, "attn_output");
  p.returns({p.call(m.o, {"attn_output"})});
  return id;
}

ModuleId add_router(ModelBuilder& b, ModuleId moe, const Deepseek& d) {
  const ModuleId id = b.add_module(moe, "gate", "DeepseekV3TopkRouter");
  const ParameterId weight = b.add_parameter(id, "weight", {d.moe.experts, d.moe.hidden});
  b.model().at(id).buffers = {{"e_score_correction_bias", {d.moe.experts}, DType::kFloat32, true}};
  Program p(b, id, {"x"});
  p.view("x", {-1, d.moe.hidden}, "hidden_states");
  const Program::Value wide = p.cast("hidden_states", DType::kFloat32);
  p.op(Function::kMatmul, {wide, p.transpose(p.cast(p.parameter(weight), DType::kFloat32), 0, 1)},
       "router_logits");
  p.op(Function::kSigmoid, {"router_logits"}, "scores");
  // Choosing the experts has no gradient that reaches the output: groups by their two best scores,
  // then the best experts.
  const auto choose = [&](Function f, std::vector<std::string> in, std::vector<std::int64_t> ints,
                          std::vector<std::string> out) {
    p.ops(f, in, std::move(ints), out);
    p.last().no_grad = true;
  };
  choose(Function::kAddBuffer, {"scores"}, {0}, {"scores_for_choice"});
  choose(Function::kView, {"scores_for_choice"}, {-1, d.groups, d.moe.experts / d.groups},
         {"grouped"});
  choose(Function::kTopK, {"grouped"}, {2}, {"best_two", "unused"});
  choose(Function::kSumDim, {"best_two"}, {-1, 0}, {"group_scores"});
  choose(Function::kTopK, {"group_scores"}, {d.kept_groups}, {"best_groups", "group_idx"});
  choose(Function::kTopK, {"scores_for_choice"}, {d.moe.top_k}, {"best", "topk_indices"});
  p.op_ints(Function::kGather, {"scores", "topk_indices"}, {1}, "topk_weights");
  if (d.normalise) {
    const Program::Value sum = p.op_ints(Function::kSumDim, {"topk_weights"}, {-1, 1});
    p.op(Function::kDivInPlace, {"topk_weights", p.add_scalar(sum, 1e-20, "denominator")},
         "topk_weights");
  }
  p.mul_scalar("topk_weights", d.scaling_factor, "topk_weights");
  p.returns({"topk_weights", "topk_indices"});
  return id;
}

ModuleId add_moe(ModelBuilder& b, ModuleId block, const Deepseek& d) {
  const ModuleId id = b.add_module(block, "mlp", "DeepseekV3MoE");
  const ModuleId experts = experts_module(b, id, "experts", d.moe);
  const ModuleId gate = add_router(b, id, d);
  const ModuleId shared = gated_mlp(b, id, "shared_experts", "DeepseekV3MLP", d.moe.hidden,
                                    d.moe.ffn * d.shared_experts, false, d.moe.activation);
  Program p(b, id, {"residuals"});
  p.call_all(gate, {"residuals"}, {"topk_weights", "topk_indices"});
  p.view("residuals", {-1, d.moe.hidden}, "hidden_states");
  p.op(Function::kViewLike,
       {p.call(experts, {"hidden_states", "topk_indices", "topk_weights"}), "residuals"},
       "hidden_states");
  p.add("hidden_states", p.call(shared, {"residuals"}), "hidden_states");
  p.returns({"hidden_states"});
  return id;
}

void read_experts(HfConfig& config, Deepseek& d) {
  d.moe = {"DeepseekV3", d.spec.hidden, 0, 0, 0, d.spec.activation};
  d.moe.ffn = config.size("moe_intermediate_size", 2048);
  d.moe.experts = config.size_or("n_routed_experts", "num_local_experts", 256, kLargestExperts);
  d.moe.top_k = config.size("num_experts_per_tok", 8, kLargestExperts);
  d.shared_experts = config.size("n_shared_experts", 1, kLargestExperts);
  d.groups = config.size("n_group", 8, kLargestExperts);
  d.kept_groups = config.size("topk_group", 4, kLargestExperts);
  d.first_dense = config.size("first_k_dense_replace", 3, kLargestLayers, 0);
  d.scaling_factor = config.number("routed_scaling_factor", 2.5, 0, 1e9);
  d.normalise = config.flag("norm_topk_prob", true);
  config.require_multiple("n_routed_experts", d.moe.experts, "n_group", d.groups);
  if (d.kept_groups > d.groups)
    config.problem("topk_group", "is larger than n_group", fmt::format("at most {}", d.groups));
  if (d.moe.experts / d.groups < 2)
    config.problem("n_group", "leaves fewer than two experts in a group");
  if (d.moe.top_k > d.moe.experts / d.groups * d.kept_groups) {
    config.problem(
        "num_experts_per_tok",
        fmt::format("{} experts a token cannot come from {} groups", d.moe.top_k, d.kept_groups));
  }
}

}  // namespace

Model import_deepseek_v3(HfConfig& config) {
  Deepseek d;
  // head_dim is that of the rotary part, whatever the file says.
  DecoderDefaults defaults{129280, 7168, 18432, 61, 128, 128, true, 64, 1e-6, false};
  d.spec = read_decoder(config, "DeepseekV3", defaults);
  d.rope_dim = config.size("qk_rope_head_dim", 64, 1 << 16);
  d.nope_dim = config.size("qk_nope_head_dim", 128, 1 << 16);
  d.v_dim = config.size("v_head_dim", 128, 1 << 16);
  d.kv_rank = config.size("kv_lora_rank", 512);
  d.q_rank = config.optional_size("q_lora_rank", 1536);
  d.attention_bias = config.flag("attention_bias", false);
  d.interleave = config.flag("rope_interleave", true);
  d.dropout = d.spec.attention.call.dropout;
  d.scale = 1.0 / std::sqrt(static_cast<double>(d.qk_dim()));
  if (d.rope_dim % 2 != 0)
    config.problem("qk_rope_head_dim", "is odd: rotary embeddings need an even size");
  if (d.spec.attention.kv_heads != d.heads()) {
    config.problem("num_key_value_heads",
                   "differs from num_attention_heads: the keys are expanded to all heads",
                   fmt::format("{}", d.heads()));
  }
  d.spec.attention.rotary = d.rope_dim;
  read_experts(config, d);
  config.ignore({"pretraining_tp", "output_router_logits", "num_mtp_layers",
                 "num_nextn_predict_layers", "aux_loss_alpha", "qk_head_dim"});
  const bool tied = read_tied(config, false);
  config.finish();
  if (!config.usable()) return {};
  d.spec.mixer = [&](ModelBuilder& b, ModuleId block, std::int64_t) {
    return DecoderSpec::Mixer{"self_attn", add_attention(b, block, d), true};
  };
  d.spec.mlp = [&](ModelBuilder& b, ModuleId block, std::int64_t layer) {
    return layer >= d.first_dense ? add_moe(b, block, d)
                                  : gated_mlp(b, block, "mlp", "DeepseekV3MLP", d.spec.hidden,
                                              d.spec.ffn, false, d.spec.activation);
  };
  return causal_model("DeepseekV3ForCausalLM", "model", d.spec, {tied, std::nullopt});
}

}  // namespace foreshard
