#pragma once

#include <string>
#include <vector>

#include "models/module_tree.h"

namespace foreshard {

/// requires_grad_(False) on the modules that `names` say and all beneath them. A name is a whole
/// path ("model.vision_tower") or its end ("vision_tower", "layers.0"). InputError for one that
/// names no module, with the nearest name, and where nothing would be left to train.
void freeze(Model& model, const std::vector<std::string>& names);

}  // namespace foreshard
