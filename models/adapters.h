#pragma once

// Low-rank adapters on the linear layers of a model: LoRA as PEFT builds it
// (peft/tuners/lora/layer.py), QLoRA with a base in bitsandbytes' NF4.

#include <cstdint>
#include <string>
#include <vector>

#include "models/module_tree.h"

namespace foreshard {

struct LoraOptions {
  std::int64_t rank = 8;
  double alpha = 8, dropout = 0;  ///< The adapter's result is scaled by alpha / rank.
  /// Last names of linear modules, or "all-linear" (all but the head); none: default_lora_targets.
  std::vector<std::string> targets;
  /// What adapters are kept in: PEFT casts those over a 16-bit base to fp32
  /// (autocast_adapter_dtype), or leaves them in the base's dtype.
  enum class Dtype : std::uint8_t { kFloat32, kBase } dtype = Dtype::kFloat32;
  /// How frozen linear weights are kept. Four bits: NF4 in 16-bit storage, one scale for 64 values,
  /// the scales in fp32 or themselves in 8 bits with one scale for 256 (double quantisation).
  enum class Base : std::uint8_t { k16Bit, k4Bit, k4BitDouble } base = Base::k16Bit;
};

/// Freezes every parameter and gives each target trainable lora_A [rank, in] and lora_B [out,
/// rank]; the target itself becomes `base_layer` beneath its old name. With a 4-bit base every
/// linear weight but the head's is packed. InputError if no module matches, with the names that
/// exist.
Model with_lora(Model model, const LoraOptions& options);

/// Packs the frozen linear weights of a model with adapters, but not the head's, in four bits
/// (Base::k4Bit).
Model with_4bit_base(Model model);

/// Names of the blocks and of every leaf whose own parameters are all trainable, where others are
/// frozen: what peft's fsdp_auto_wrap_policy wraps, so that no flat parameter mixes both.
std::vector<std::string> blocks_and_adapters(const Model& model);

}  // namespace foreshard
