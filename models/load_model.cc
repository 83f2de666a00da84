#include "models/load_model.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/json.h"
#include "core/text.h"
#include "models/catalogue.h"
#include "models/freeze.h"
#include "models/graph_file.h"
#include "models/import/registry.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

struct Request {
  std::string name;
  std::vector<std::pair<std::string, std::string>> settings;
};

Request split_request(const std::string& text) {
  Request request;
  const std::size_t mark = text.find('?');
  request.name = text.substr(0, mark);
  std::size_t at = mark;
  while (at != std::string::npos) {
    const std::size_t next = text.find('&', at + 1);
    const std::string part = text.substr(at + 1, next == std::string::npos ? next : next - at - 1);
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw InputError(
          {text, part, "is not of the form key=value", "as in mpt-7b?max_seq_len=8192"});
    }
    request.settings.emplace_back(part.substr(0, equals), part.substr(equals + 1));
    at = next;
  }
  return request;
}

/// Takes the setting that says something of training, not of the configuration: module names
/// separated by commas.
std::vector<std::string> take_frozen(Request& request) {
  std::vector<std::string> names;
  for (const auto& [key, value] : request.settings) {
    if (key != "freeze") continue;
    for (std::string& name : parts_of(value, ',')) names.push_back(std::move(name));
  }
  std::erase_if(request.settings, [](const auto& setting) { return setting.first == "freeze"; });
  return names;
}

// Values are JSON where they parse as such (numbers, true, null), text otherwise.
void apply_settings(Json& json, const Request& request) {
  if (request.settings.empty()) return;
  if (!json.is_object())
    throw InputError({request.name, "", "is not an object: keys cannot be set", ""});
  for (const auto& [key, value] : request.settings) {
    Json parsed = Json::parse(value, nullptr, false);
    json[key] = parsed.is_discarded() || parsed.is_structured() ? Json(value) : parsed;
  }
}

bool exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Something that was clearly meant as a file, not as a name.
bool looks_like_path(const std::string& name) {
  const fs::path path(name);
  return path.extension() == ".json" || path.extension() == ".gz" || name.rfind("./", 0) == 0 ||
         name.rfind('/', 0) == 0;
}

std::string name_of_file(const fs::path& path) {
  const std::string stem = path.stem().string();
  return stem == "config" && path.has_parent_path() ? path.parent_path().filename().string() : stem;
}

[[noreturn]] void refuse_name(const std::string& name) {
  if (looks_like_path(name))
    throw InputError(
        {name, "", "there is no such file", "a catalogue name, a config.json or a graph file"});
  const std::vector<std::string> near = nearest_catalogue_names(name, 3);
  const std::string hint = near.empty() ? "no known name is near"
                                        : fmt::format("nearest names: {}", fmt::join(near, ", "));
  throw InputError(
      {name, "", "is neither a known model nor a file",
       hint + "; `foreshard models` lists all; a config.json of the hub is read, too"});
}

}  // namespace

Model model_from_json(const Json& json, const std::string& file,
                      std::vector<std::string>* warnings) {
  std::vector<std::string> unused;
  std::vector<std::string>& sink = warnings ? *warnings : unused;
  if (json.is_object() && json.contains("format")) return read_graph_file(json, file);
  return import_hf_config(json, file, sink);
}

Model load_model(const std::string& text, std::vector<std::string>* warnings) {
  Request request = exists(text) ? Request{text, {}} : split_request(text);
  const std::vector<std::string> frozen = take_frozen(request);
  const std::string& name = request.name;
  if (name.empty())
    throw InputError(
        {"model", "", "no model is named", "a catalogue name, a config.json or a graph file"});
  Json json;
  std::string file, shown;
  if (const CatalogueModel* known = looks_like_path(name) ? nullptr : find_catalogue_model(name)) {
    file = "catalogue: " + known->name;
    shown = known->name;
    json = parse_json(known->config, file);
  } else {
    if (!exists(name)) refuse_name(name);
    fs::path path(name);
    std::error_code error;
    if (fs::is_directory(path, error)) path /= "config.json";
    file = path.string();
    shown = name_of_file(path);
    json = read_json_file(path);
  }
  apply_settings(json, request);
  std::vector<std::string> found;
  Model model = model_from_json(json, file, &found);
  if (warnings)
    for (const std::string& w : found) warnings->push_back(file + ": " + w);
  if (model.name.empty()) model.name = shown;
  if (!frozen.empty()) freeze(model, frozen);
  return model;
}

}  // namespace foreshard
