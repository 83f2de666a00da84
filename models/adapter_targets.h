#pragma once

// Which modules adapters stand on: what PEFT takes for a family, and what a model has.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "models/module_tree.h"

namespace foreshard {

/// Of the module's path.
std::string last_name(const Module& module);

/// PEFT's own table (peft/utils/constants.py 0.21,
/// TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING); families that it does not know, where it
/// asks for a list: q_proj and v_proj if the model has both, else nothing.
std::vector<std::string> default_lora_targets(const Model& model);

struct AdapterFacts {
  std::int64_t rank = 0;
  std::vector<std::string> targets;  ///< Last names of the adapted modules, in the model's order.
  DType dtype = DType::kFloat32;     ///< That adapters are kept in.
};
/// Of a model with adapters (with_lora).
std::optional<AdapterFacts> adapter_facts(const Model& model);
/// "LoRA rank 16 on q_proj, v_proj in fp32"; empty without adapters.
std::string describe_adapters(const Model& model);

/// Where a base in four bits leaves experts that are no linear modules in 16 bits: how much of it;
/// else empty.
std::string unpacked_experts(const Model& model);

}  // namespace foreshard
