#pragma once

// What models with images and a text decoder have in common: model.{vision tower, projector,
// language_model} and lm_head.

#include <string>

#include "models/import/decoder.h"

namespace foreshard {

/// A ...ForConditionalGeneration being built: root with a child "model".
struct Multimodal {
  explicit Multimodal(const std::string& class_name, const std::string& model_class)
      : b(class_name), model(b.add_module(b.root(), "model", model_class)) {}

  ModelBuilder b;
  ModuleId model;
  Decoder decoder;
  std::vector<ModuleId> vision_blocks, extra_units;

  /// language_model, and lm_head beside "model".
  void add_language_model(const DecoderSpec& spec);
  /// A sample has so many images, each of which takes `places` of its tokens.
  void sample_of(std::int64_t images, std::int64_t side, std::int64_t places);
  /// Writes the root, which hands all its arguments on to "model", ties the head and hands the
  /// model over.
  Model finish(std::int64_t vocabulary, bool tied,
               const std::vector<ModelArgument>& further_arguments);
};

/// Images of a sample, 1 unless the request says so (llava-1.5-7b?images=3). A key of ours: files
/// of the library leave it to the data.
std::int64_t read_images(HfConfig& config);

/// inputs_embeds from input_ids, with `features` (rows of the hidden size) at the places of
/// `token`.
void merge_images(Program& p, std::int64_t token, const Program::Value& features);

/// The text decoder of "text_config" by its own model type (llama, mistral, qwen2, qwen3; others
/// are refused), and whether it says that its embeddings are tied.
struct TextDecoder {
  DecoderSpec spec;
  bool tied = false;
};
TextDecoder read_text_decoder(HfConfig& parent, const std::string& fallback);

}  // namespace foreshard
