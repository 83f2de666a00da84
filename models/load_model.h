#pragma once

#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "models/module_tree.h"

namespace foreshard {

/// The model that a person names: a catalogue name or alias ("llama3-8b"), the path of a Hugging
/// Face config.json, the path of a folder that holds one, or the path of our own graph file.
/// "NAME?key=value&key=value" sets keys of the configuration before it is read
/// ("mpt-7b?max_seq_len=8192"); "freeze=vision_tower,layers.0" freezes modules (freeze.h).
/// `warnings` (may be null) takes what was read and has no effect. InputError: unknown name with
/// the nearest ones, unreadable file, or every problem of the file at once.
Model load_model(const std::string& text, std::vector<std::string>* warnings = nullptr);

/// The same from a parsed document; tells a graph file from a Hugging Face config by its "format"
/// key.
Model model_from_json(const Json& json, const std::string& file,
                      std::vector<std::string>* warnings = nullptr);

}  // namespace foreshard
