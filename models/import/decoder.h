#pragma once

// The pre-norm decoder of Llama's shape, with the variations of its descendants.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/import/layers.h"

namespace foreshard {

struct DecoderSpec {
  std::string prefix;  ///< "Llama": class names are prefix + "DecoderLayer" and so on.
  std::int64_t vocabulary = 0, hidden = 0, layers = 0, ffn = 0;
  AttentionSpec
      attention;  ///< Without class name; `call.repeats`, masks and rotary are filled here.
  bool mlp_bias = false;
  Activation activation = Activation::kSilu;
  double norm_eps = 1e-6;
  NormStyle norm_style = NormStyle::kLlama;
  /// Kind of the decoder's last norm (blocks of their own choose theirs).
  enum class Norm : std::uint8_t { kRms, kLayer } norm = Norm::kRms;
  std::string final_norm = "norm";
  bool four_norms = false;  ///< Gemma 2 and 3: a norm after attention and after the MLP as well.
  std::optional<double> embedding_scale;  ///< Gemma: embedding times sqrt(hidden).
  /// For each layer: attention window, 0 = full attention. Empty: all full.
  std::vector<std::int64_t> windows;
  double embedding_dropout = 0.0;  ///< Phi: on the embeddings, after the masks are made.
  double residual_dropout = 0.0;   ///< Phi-3: on what is added to the residual.
  bool masks_always = false;       ///< Masks even where SDPA needs none (Gemma 3 with images).
  /// Which masks the model asks for: those that its layers use; the full one in any case; both in
  /// any case.
  enum class MaskCalls : std::uint8_t {
    kAsUsed,
    kFullAlways,
    kBoth
  } mask_calls = MaskCalls::kAsUsed;
  /// Order of a block's keyword arguments, as a checkpoint drops them: mask, positions, table; else
  /// mask, table, positions.
  bool positions_before_table = false;
  bool long_rope = false;      ///< Rotary frequencies for long contexts (Phi-3's "longrope").
  bool second_rotary = false;  ///< Gemma 3: sliding layers have a rotary table of their own.
  std::string embedding_class = "Embedding";
  std::string model_class;  ///< Of the decoder itself; empty: prefix + "Model" or "TextModel".
  /// Replaces the gated MLP of a layer (mixture of experts); returns a module hidden_states ->
  /// hidden_states.
  std::function<ModuleId(ModelBuilder&, ModuleId parent, std::int64_t layer)> mlp;
  /// Replaces the attention of a layer (name, module): same inputs and result; empty name: the
  /// usual one.
  struct Mixer {
    std::string name;
    ModuleId module;
    bool positional = true;
  };
  std::function<Mixer(ModelBuilder&, ModuleId parent, std::int64_t layer)> mixer;
  /// Replaces the whole block: inputs as block_inputs() says, result hidden_states.
  std::function<ModuleId(ModelBuilder&, ModuleId list, std::int64_t layer)> block;
};

struct Decoder {
  ModuleId model, embedding, norm;
  std::vector<ModuleId> blocks;
};

/// Arguments of a block with positions, in the order in which a checkpoint drops them.
std::vector<std::string> block_inputs(const DecoderSpec& spec);

/// Adds the decoder as a child; its module takes input_ids, or inputs_embeds with
/// `from_embeddings`, and returns hidden_states.
Decoder add_decoder(ModelBuilder& b, ModuleId parent, const std::string& name,
                    const DecoderSpec& spec, bool from_embeddings = false);

/// The whole ...ForCausalLM: decoder named `base` and lm_head, tied or not, with an optional bias
/// and soft cap of the logits.
struct CausalHead {
  bool tied = false;
  std::optional<double> softcap;
  bool bias = false;
};
Model causal_model(const std::string& class_name, const std::string& base, const DecoderSpec& spec,
                   const CausalHead& head);

/// Writes the root of a causal model from input_ids through `decoder` and `head` and hands the
/// model over.
Model finish_causal(ModelBuilder& b, const Decoder& decoder, ModuleId head, std::int64_t vocabulary,
                    bool tied);

/// A token argument "name" of [micro-batch, sequence].
ModelArgument token_argument(const std::string& name, std::int64_t vocabulary);
/// An argument of pixels; shape as in ModelArgument.
ModelArgument pixel_argument(std::vector<std::int64_t> shape);

}  // namespace foreshard
