#include "models/import/moe.h"

#include <algorithm>

#include "models/import/families.h"

namespace foreshard {
namespace {

void check_top_k(HfConfig& config, const MoeSpec& spec, const char* key) {
  if (spec.top_k > spec.experts) {
    config.problem(
        key,
        "is " + std::to_string(spec.top_k) + " of " + std::to_string(spec.experts) + " experts",
        "at most the number of experts");
  }
}

ModuleId mixtral_block(ModelBuilder& b, ModuleId parent, const MoeSpec& spec, double jitter) {
  const ModuleId id = b.add_module(parent, "mlp", "MixtralSparseMoeBlock");
  const ModuleId gate =
      softmax_router(b, id, "gate", "MixtralTopKRouter", spec, {true, false, true});
  const ModuleId experts = experts_module(b, id, "experts", spec);
  Program p(b, id, {"x"});
  if (jitter > 0) p.scalar(Function::kJitter, "x", jitter, "x");
  p.view("x", {-1, spec.hidden}, "hidden_states");
  p.call_all(gate, {"hidden_states"},
             {"_", "top_k_weights", "top_k_index"});  // Held to the end, unused.
  p.call(experts, {"hidden_states", "top_k_index", "top_k_weights"}, "hidden_states");
  p.returns({p.op(Function::kViewLike, {"hidden_states", "x"})});
  return id;
}

}  // namespace

ModuleId experts_module(ModelBuilder& b, ModuleId parent, const std::string& name,
                        const MoeSpec& spec) {
  const ModuleId id = b.add_module(parent, name, spec.prefix + "Experts");
  const ParameterId gate_up =
      b.add_parameter(id, "gate_up_proj", {spec.experts, 2 * spec.ffn, spec.hidden});
  const ParameterId down = b.add_parameter(id, "down_proj", {spec.experts, spec.hidden, spec.ffn});
  Program p(b, id, {"hidden_states", "top_k_index", "top_k_weights"});
  p.op_ints(Function::kRoutedExperts, {"hidden_states", "top_k_weights", "top_k_index"},
            {spec.experts, spec.top_k, static_cast<std::int64_t>(spec.activation)},
            "final_hidden_states");
  p.last().parameters = {gate_up, down};
  // Weights in fp32 (Mixtral, DeepSeek) make an fp32 sum, which the library converts back.
  p.returns({p.cast_like("final_hidden_states", "hidden_states", "final_hidden_states")});
  return id;
}

ModuleId softmax_router(ModelBuilder& b, ModuleId parent, const std::string& name,
                        const std::string& class_name, const MoeSpec& spec,
                        const RouterOptions& options) {
  const ModuleId id = b.add_module(parent, name, class_name);
  const ParameterId weight = b.add_parameter(id, "weight", {spec.experts, spec.hidden});
  Program p(b, id, {"hidden_states"});
  p.view("hidden_states", {-1, spec.hidden}, "hidden_states");
  p.op(Function::kLinear, {"hidden_states"}, "router_logits");
  p.last().parameters = {weight};
  const Program::Value logits =
      options.cast_before_softmax ? p.cast("router_logits", DType::kFloat32) : "router_logits";
  p.softmax(logits, DType::kFloat32, "router_probs");
  p.ops(Function::kTopK, {"router_probs"}, {spec.top_k}, {"router_top_value", "router_indices"});
  if (options.normalise) {
    p.op(Function::kDivInPlace,
         {"router_top_value", p.op_ints(Function::kSumDim, {"router_top_value"}, {-1, 1})},
         "router_top_value");
  }
  if (options.back_to_input_dtype)
    p.cast_like("router_top_value", "router_logits", "router_top_value");
  p.returns({"router_logits", "router_top_value", "router_indices"});
  return id;
}

ModuleId qwen_moe_block(ModelBuilder& b, ModuleId parent, const MoeSpec& spec,
                        std::int64_t shared_ffn, bool normalise) {
  const ModuleId id = b.add_module(parent, "mlp", spec.prefix + "SparseMoeBlock");
  const ModuleId gate =
      softmax_router(b, id, "gate", spec.prefix + "TopKRouter", spec, {normalise, true, false});
  const ModuleId experts = experts_module(b, id, "experts", spec);
  const ModuleId shared = gated_mlp(b, id, "shared_expert", spec.prefix + "MLP", spec.hidden,
                                    shared_ffn, false, spec.activation);
  const ModuleId shared_gate = b.linear(id, "shared_expert_gate", spec.hidden, 1, false);
  Program p(b, id, {"hidden_states"});
  p.view("hidden_states", {-1, spec.hidden}, "reshaped");
  p.call(shared, {"reshaped"}, "shared_expert_output");
  p.call_all(gate, {"reshaped"}, {"_", "routing_weights", "selected_experts"});
  p.call(experts, {"reshaped", "selected_experts", "routing_weights"}, "expert_output");
  p.mul(p.op(Function::kSigmoid, {p.call(shared_gate, {"reshaped"})}), "shared_expert_output",
        "shared_expert_output");
  p.add("expert_output", "shared_expert_output", "expert_output");
  p.returns({p.op(Function::kViewLike, {"expert_output", "hidden_states"})});
  return id;
}

ModuleId qwen3_moe_block(ModelBuilder& b, ModuleId parent, const MoeSpec& spec, bool normalise) {
  const ModuleId id = b.add_module(parent, "mlp", spec.prefix + "SparseMoeBlock");
  const ModuleId experts = experts_module(b, id, "experts", spec);
  const ModuleId gate =
      softmax_router(b, id, "gate", spec.prefix + "TopKRouter", spec, {normalise, true, false});
  Program p(b, id, {"hidden_states"});
  p.view("hidden_states", {-1, spec.hidden}, "reshaped");
  p.call_all(gate, {"reshaped"}, {"_", "routing_weights", "selected_experts"});
  p.call(experts, {"reshaped", "selected_experts", "routing_weights"}, "final_hidden_states");
  p.returns({p.op(Function::kViewLike, {"final_hidden_states", "hidden_states"})});
  return id;
}

ModuleId SparseMlp::operator()(ModelBuilder& b, ModuleId block, std::int64_t layer) const {
  const bool named =
      std::find(dense_layers.begin(), dense_layers.end(), layer) != dense_layers.end();
  if (!named && moe.experts > 0 && (layer + 1) % step == 0)
    return shared > 0 ? qwen_moe_block(b, block, moe, shared, normalise)
                      : qwen3_moe_block(b, block, moe, normalise);
  return gated_mlp(b, block, "mlp", prefix + "MLP", moe.hidden, dense_ffn, false, moe.activation);
}

SparseMlp read_sparse_mlp(HfConfig& config, const DecoderSpec& spec,
                          const SparseDefaults& defaults) {
  SparseMlp m;
  m.prefix = spec.prefix;
  m.dense_ffn = spec.ffn;
  m.moe = {spec.prefix, spec.hidden, 0, 0, 0, spec.activation};
  m.moe.ffn = config.size("moe_intermediate_size", defaults.ffn);
  m.moe.experts = config.size(config.has("num_experts") ? "num_experts" : defaults.experts_alias,
                              defaults.experts, kLargestExperts, 0);
  m.moe.top_k = config.size("num_experts_per_tok", defaults.top_k, kLargestExperts);
  if (defaults.shared > 0)
    m.shared = config.size("shared_expert_intermediate_size", defaults.shared);
  m.step = config.size("decoder_sparse_step", 1, kLargestLayers);
  m.dense_layers =
      config.integers("mlp_only_layers", 0, kLargestLayers).value_or(std::vector<std::int64_t>{});
  m.normalise = config.flag("norm_topk_prob", defaults.normalise);
  if (m.moe.experts > 0) check_top_k(config, m.moe, "num_experts_per_tok");
  config.ignore({"output_router_logits", "router_aux_loss_coef"});
  return m;
}

Model import_mixtral(HfConfig& config) {
  DecoderDefaults defaults{32000, 4096, 14336, 32, 32, 8, false, {}, 1e-5, false};
  DecoderSpec spec = read_decoder(config, "Mixtral", defaults);
  if (const auto window = config.optional_size("sliding_window", std::nullopt, INT32_MAX)) {
    spec.windows.assign(static_cast<std::size_t>(spec.layers), *window);
  }
  spec.positions_before_table = true;
  MoeSpec moe{"Mixtral", spec.hidden, spec.ffn, 0, 0, spec.activation};
  moe.experts = config.size_or("num_local_experts", "num_experts", 8, kLargestExperts);
  moe.top_k = config.size("num_experts_per_tok", 2, kLargestExperts);
  check_top_k(config, moe, "num_experts_per_tok");
  const double jitter = config.number("router_jitter_noise", 0.0, 0.0, 1.0);
  config.ignore({"output_router_logits", "router_aux_loss_coef"});
  const bool tied = read_tied(config, false);
  config.finish();
  if (!config.usable()) return {};
  spec.mlp = [&](ModelBuilder& b, ModuleId block, std::int64_t) {
    return mixtral_block(b, block, moe, jitter);
  };
  return causal_model("MixtralForCausalLM", "model", spec, {tied, std::nullopt});
}

Model import_qwen2_moe(HfConfig& config) {
  DecoderDefaults defaults{151936, 2048, 5632, 24, 16, 16, true, {}, 1e-6, false};
  DecoderSpec spec = read_decoder(config, "Qwen2Moe", defaults);
  spec.attention.qkv_bias = config.flag("qkv_bias", true);
  const bool used = config.flag("use_sliding_window", false);
  const auto window = config.optional_size("sliding_window", 4096, INT32_MAX);
  const std::int64_t last = config.size("max_window_layers", 28, kLargestLayers, 0);
  spec.windows = read_windows(config, spec.layers, used ? window.value_or(0) : 0,
                              [&](std::int64_t i) { return used && i % 2 == 0 && i < last; });
  spec.mask_calls = DecoderSpec::MaskCalls::kBoth;
  spec.positions_before_table = true;
  const SparseMlp mlp = read_sparse_mlp(config, spec, {1408, 60, 4, 5632, false});
  const bool tied = read_tied(config, false);
  config.finish();
  if (!config.usable()) return {};
  spec.mlp = mlp;
  return causal_model("Qwen2MoeForCausalLM", "model", spec, {tied, std::nullopt});
}

Model import_qwen3_moe(HfConfig& config) {
  DecoderDefaults defaults{151936, 2048, 6144, 24, 32, 4, false, {}, 1e-6, false};
  DecoderSpec spec = read_decoder(config, "Qwen3Moe", defaults);
  spec.attention.qkv_bias = spec.attention.out_bias = config.flag("attention_bias", false);
  spec.attention.qk_norm = AttentionSpec::QkNorm::kBeforeTranspose;
  spec.positions_before_table = true;
  const bool used = config.flag("use_sliding_window", false);
  const auto window = config.optional_size("sliding_window", 4096, INT32_MAX);
  if (used && window) spec.windows.assign(static_cast<std::size_t>(spec.layers), *window);
  config.ignore({"max_window_layers"});
  const SparseMlp mlp = read_sparse_mlp(config, spec, {768, 128, 8, 0, false, "num_local_experts"});
  const bool tied = read_tied(config, false);
  config.finish();
  if (!config.usable()) return {};
  spec.mlp = mlp;
  return causal_model("Qwen3MoeForCausalLM", "model", spec, {tied, std::nullopt});
}

}  // namespace foreshard
