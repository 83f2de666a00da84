#include "models/catalogue.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <mutex>

#include "core/error.h"
#include "core/json.h"
#include "core/text.h"

namespace foreshard {
namespace {

// "Llama_3 8B" and "llama-3-8b" are one spelling.
std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '_' || c == ' ') {
      out += '-';
    } else {
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return out;
}

CatalogueModel read_file(const EmbeddedModelFile& embedded) {
  const std::string file = "models/catalogue/" + std::string(embedded.name) + ".json";
  IssueList issues(file);
  const Json json = parse_json(embedded.text, file);
  ObjectReader reader(json, "", issues);
  CatalogueModel model;
  model.name = reader.required_string("name");
  model.source = reader.required_string("source");
  model.aliases = reader.string_list("aliases").value_or(std::vector<std::string>{});
  if (const Json* config = reader.get("config"); config && config->is_object()) {
    model.config = config->dump();
  } else {
    reader.report("config", "is missing or not an object");
  }
  reader.finish();
  issues.throw_if_any();
  return model;
}

/// The model whose file has this name; no other is read.
const CatalogueModel* find_file(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, CatalogueModel> known;
  int count = 0;
  const EmbeddedModelFile* files = embedded_model_files(count);
  const auto* const end = files + count;
  const auto* const file =
      std::find_if(files, end, [&](const EmbeddedModelFile& f) { return f.name == name; });
  if (file == end) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  auto it = known.find(name);
  if (it == known.end()) it = known.emplace(name, read_file(*file)).first;
  return &it->second;
}

std::vector<CatalogueModel> read_catalogue() {
  std::vector<CatalogueModel> models;
  int count = 0;
  const EmbeddedModelFile* files = embedded_model_files(count);
  for (int i = 0; i < count; ++i) models.push_back(read_file(files[i]));
  std::sort(models.begin(), models.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return models;
}

/// The model with this name or alias, given as plain() writes it.
const CatalogueModel* find_spelling(const std::string& wanted) {
  for (const CatalogueModel& m : model_catalogue()) {
    if (plain(m.name) == wanted) return &m;
    for (const std::string& alias : m.aliases)
      if (plain(alias) == wanted) return &m;
  }
  return nullptr;
}

/// The name without the words that say how the weights were trained on or converted, and not what
/// the architecture is: "Llama-2-7b-chat-hf" is "Llama-2-7b", "Mistral-7B-Instruct-v0.2" is
/// "Mistral-7B-v0.2". The organisation stays: others publish under the same names what they like.
/// Meta's names of the hub with and without "Meta-" are one.
std::string base_name(const std::string& wanted) {
  std::string out;
  std::size_t at = 0;
  for (bool first = true; at <= wanted.size(); first = false) {
    const std::size_t end = std::min(wanted.find('-', at), wanted.size());
    const std::string word = wanted.substr(at, end - at);
    const bool says_nothing = !first && (word == "instruct" || word == "chat" || word == "hf" ||
                                         word == "base" || word == "it");
    if (!says_nothing) out += (first ? "" : "-") + word;
    at = end + 1;
  }
  const std::string meta = "meta-llama/meta-llama-";
  if (out.rfind(meta, 0) == 0) out = "meta-llama/llama-" + out.substr(meta.size());
  if (out.rfind("meta-llama-", 0) == 0) out = out.substr(5);
  return out;
}

std::string with_meta(const std::string& base) {
  const std::string organisation = "meta-llama/";
  if (base.rfind(organisation, 0) != 0) return base;
  return organisation + "meta-" + base.substr(organisation.size());
}

}  // namespace

const std::vector<CatalogueModel>& model_catalogue() {
  static const std::vector<CatalogueModel> models = read_catalogue();
  return models;
}

const CatalogueModel* find_catalogue_model(std::string_view name) {
  const std::string wanted = plain(name);
  if (const CatalogueModel* m = find_file(wanted)) return m;
  if (const CatalogueModel* m = find_spelling(wanted)) return m;
  const std::string base = base_name(wanted);
  if (base == wanted) return nullptr;
  for (const std::string& spelling : {base, base + "-hf", with_meta(base)})
    if (const CatalogueModel* m = find_spelling(spelling)) return m;
  return nullptr;
}

std::vector<std::string> nearest_catalogue_names(std::string_view name, int count) {
  const std::string wanted = plain(name.substr(0, 64));
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (const CatalogueModel& m : model_catalogue()) {
    std::size_t best = edit_distance(wanted, plain(m.name));
    for (const std::string& alias : m.aliases)
      best = std::min(best, edit_distance(wanted, plain(alias)));
    if (best <= std::max<std::size_t>(2, wanted.size() / 3)) ranked.emplace_back(best, m.name);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (std::size_t i = 0; i < ranked.size() && static_cast<int>(i) < count; ++i)
    names.push_back(ranked[i].second);
  return names;
}

}  // namespace foreshard
