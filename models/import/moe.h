#pragma once

// Mixtures of experts as the library builds them: a router and experts kept in two
// three-dimensional tensors.

#include <cstdint>
#include <string>
#include <vector>

#include "models/import/decoder.h"

namespace foreshard {

class HfConfig;

struct MoeSpec {
  std::string prefix;  ///< "Mixtral": classes are prefix + "Experts" and so on.
  std::int64_t hidden = 0, ffn = 0, experts = 0, top_k = 0;
  Activation activation = Activation::kSilu;
};

/// Parameters gate_up_proj [E, 2 ffn, hidden], down_proj [E, hidden, ffn]; inputs hidden_states [T,
/// hidden], top_k_index, top_k_weights.
ModuleId experts_module(ModelBuilder& b, ModuleId parent, const std::string& name,
                        const MoeSpec& spec);

/// Weight [E, hidden], softmax in fp32, the k largest; returns top_k_weights, top_k_index.
struct RouterOptions {
  bool normalise = false;  ///< Divide the k weights by their sum.
  bool back_to_input_dtype =
      false;  ///< Weights in the logits' dtype (Qwen) or left in fp32 (Mixtral).
  bool cast_before_softmax = false;  ///< logits.float() as a tensor of its own (Mixtral).
};
ModuleId softmax_router(ModelBuilder& b, ModuleId parent, const std::string& name,
                        const std::string& class_name, const MoeSpec& spec,
                        const RouterOptions& options);

/// Which MLP each layer of Qwen2-MoE, Qwen3-MoE and Qwen3-Next has: experts, or dense where
/// "mlp_only_layers" or "decoder_sparse_step" say so.
struct SparseMlp {
  std::string prefix;
  MoeSpec moe;
  std::int64_t shared = 0;  ///< Width of the shared expert; 0: none (Qwen3-MoE).
  std::int64_t dense_ffn = 0, step = 1;
  std::vector<std::int64_t> dense_layers;
  bool normalise = false;

  ModuleId operator()(ModelBuilder& b, ModuleId block, std::int64_t layer) const;
};
struct SparseDefaults {
  std::int64_t ffn, experts, top_k, shared;
  bool normalise;
  const char* experts_alias = "num_experts";  ///< Other name of the number of experts.
};
SparseMlp read_sparse_mlp(HfConfig& config, const DecoderSpec& spec,
                          const SparseDefaults& defaults);

/// Qwen's block: router, experts, a shared expert with a sigmoid gate of its own.
ModuleId qwen_moe_block(ModelBuilder& b, ModuleId parent, const MoeSpec& spec,
                        std::int64_t shared_ffn, bool normalise);

/// Qwen3-MoE's: experts, then the router, no shared expert.
ModuleId qwen3_moe_block(ModelBuilder& b, ModuleId parent, const MoeSpec& spec, bool normalise);

}  // namespace foreshard
