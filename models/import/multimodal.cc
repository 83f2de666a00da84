#include "models/import/multimodal.h"

#include <fmt/core.h>

#include "models/import/families.h"

namespace foreshard {

void Multimodal::add_language_model(const DecoderSpec& spec) {
  decoder = add_decoder(b, model, "language_model", spec, true);
}

void Multimodal::sample_of(std::int64_t images, std::int64_t side, std::int64_t places) {
  Model& m = b.model();
  m.shortest_sequence = images * places;
  m.sample = fmt::format("{0} image{1} of {2} x {2} ({3} of the tokens)", images,
                         images == 1 ? "" : "s", side, images * places);
}

std::int64_t read_images(HfConfig& config) {
  constexpr std::int64_t kMostImages = 1024;
  return config.size("images", 1, kMostImages);
}

Model Multimodal::finish(std::int64_t vocabulary, bool tied,
                         const std::vector<ModelArgument>& further_arguments) {
  Model& m = b.model();
  const std::int64_t hidden = m.at(m.at(decoder.embedding).parameters[0].id).shape[1];
  const ModuleId head = b.linear(b.root(), "lm_head", hidden, vocabulary, false);
  if (tied) b.tie_parameter(head, "weight", m.at(decoder.embedding).parameters[0].id);
  m.arguments = {token_argument("input_ids", vocabulary)};
  m.arguments.insert(m.arguments.end(), further_arguments.begin(), further_arguments.end());
  std::vector<std::string> names;
  for (const ModelArgument& a : m.arguments) names.push_back(a.name);
  Program p(b, b.root(), names);
  p.call(model, names, "hidden_states");
  p.returns({p.call(head, {"hidden_states"}, "logits")});
  m.architecture = m.root().class_name;
  std::vector<ModuleId> blocks = vision_blocks;
  blocks.insert(blocks.end(), decoder.blocks.begin(), decoder.blocks.end());
  m.roles = {blocks, {decoder.embedding}, {decoder.norm, head}, extra_units};
  return b.take();
}

void merge_images(Program& p, std::int64_t token, const Program::Value& features) {
  p.op_ints(Function::kMaskedScatter, {"inputs_embeds", "input_ids", features}, {token},
            "inputs_embeds");
}

TextDecoder read_text_decoder(HfConfig& parent, const std::string& fallback) {
  HfConfig config = parent.nested("text_config");
  const std::string type =
      config.choice("model_type", fallback, {"llama", "mistral", "qwen2", "qwen3"});
  TextDecoder text;
  if (type == "mistral")
    text.spec = read_mistral_spec(config);
  else if (type == "qwen2")
    text.spec = read_qwen2_spec(config);
  else if (type == "qwen3")
    text.spec = read_qwen3_spec(config);
  else
    text.spec = read_llama_spec(config);
  text.spec.model_class = text.spec.prefix + "Model";
  text.tied = read_tied(config, false);
  config.finish();
  return text;
}

}  // namespace foreshard
