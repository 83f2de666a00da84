#pragma once

// Our own file form of a model: the module tree as JSON. docs/formats/model.md describes it with a
// complete example.

#include <string>

#include "core/json_fwd.h"
#include "models/module_tree.h"

namespace foreshard {

/// Reads a parsed graph file. InputError with every problem at once: unknown keys and functions,
/// values used before they are made, calls with a wrong number of values, parameters that do not
/// exist, modules that call each other in a circle.
Model read_graph_file(const Json& json, const std::string& file);
/// The whole model, without shorthands; read_graph_file gives the same model back.
Json write_graph_file(const Model& model);

}  // namespace foreshard
