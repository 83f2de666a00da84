#pragma once

// Mixtures of experts as the library builds them: a router and experts kept in two three-dimensional tensors.

#include <cstdint>
#include <string>

#include "models/import/program.h"

namespace foreshard {

struct MoeSpec {
  std::string prefix;                      ///< "Mixtral": classes are prefix + "Experts" and so on.
  std::int64_t hidden = 0, ffn = 0, experts = 0, top_k = 0;
  Activation activation = Activation::kSilu;
};

/// Parameters gate_up_proj [E, 2 ffn, hidden], down_proj [E, hidden, ffn]; inputs hidden_states [T, hidden], top_k_index, top_k_weights.
ModuleId experts_module(ModelBuilder& b, ModuleId parent, const std::string& name, const MoeSpec& spec);

/// Weight [E, hidden], softmax in fp32, the k largest; returns top_k_weights, top_k_index.
struct RouterOptions {
  bool normalise = false;                  ///< Divide the k weights by their sum.
  bool back_to_input_dtype = false;        ///< Weights in the logits' dtype (Qwen) or left in fp32 (Mixtral).
  bool cast_before_softmax = false;        ///< logits.float() as a tensor of its own (Mixtral).
};
ModuleId softmax_router(ModelBuilder& b, ModuleId parent, const std::string& name, const std::string& class_name,
                        const MoeSpec& spec, const RouterOptions& options);

/// Qwen's block: router, experts, a shared expert with a sigmoid gate of its own.
ModuleId qwen_moe_block(ModelBuilder& b, ModuleId parent, const MoeSpec& spec, std::int64_t shared_ffn, bool normalise);

}  // namespace foreshard
