#pragma once

// Known models by name. Each is a file of models/catalogue/*.json: our own transcription of a
// published configuration in the keys of its Hugging Face model type, with the source beside it;
// compiled in, so that an installed program needs no data folder. Adding a model is adding a file.

#include <string>
#include <string_view>
#include <vector>

namespace foreshard {

struct CatalogueModel {
  std::string name;                  ///< "llama3-8b"
  std::vector<std::string> aliases;  ///< Other spellings, hub names.
  std::string source;                ///< Where the numbers come from.
  std::string config;                ///< JSON text of the Hugging Face configuration.
};

/// All models, sorted by name.
const std::vector<CatalogueModel>& model_catalogue();
/// By name or alias, without regard to case, '_' or blanks; nullptr if there is none. Names of the
/// hub with -Instruct, -it, -chat, -base or -hf mean the model that was trained on: its architecture
/// is the same.
const CatalogueModel* find_catalogue_model(std::string_view name);
/// The names most like `name`, best first, at most `count`; none that is no slip of it (for
/// messages).
std::vector<std::string> nearest_catalogue_names(std::string_view name, int count);

/// One catalogue file compiled into the library (models/embed_catalogue.cmake writes the
/// definition).
struct EmbeddedModelFile {
  std::string_view name, text;
};
const EmbeddedModelFile* embedded_model_files(int& count);

}  // namespace foreshard
