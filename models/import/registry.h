#pragma once

// Which Hugging Face architectures can be imported, and the import itself. Adding a family: one
// builder in a file of its own, declared in families.h, and one row in registry.cc.

#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "models/module_tree.h"

namespace foreshard {

struct SupportedArchitecture {
  std::string model_type;  ///< "llama"
  std::string class_name;  ///< "LlamaForCausalLM"
};
std::vector<SupportedArchitecture> supported_architectures();

/// Builds the model a parsed config.json names, as transformers 5.24 would. `warnings` takes what
/// has no effect (unknown keys). InputError, with every problem at once: unsupported architecture
/// (with the nearest supported one), wrong types, sizes out of range, contradictions.
Model import_hf_config(const Json& config, const std::string& file,
                       std::vector<std::string>& warnings);

}  // namespace foreshard
