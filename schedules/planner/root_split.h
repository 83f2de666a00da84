#pragma once

#include <optional>
#include <string>

#include "models/module_tree.h"
#include "schedules/planner/config.h"

namespace foreshard {

/// A parameter of the embedding or the head that a module of another unit shares, and that module:
/// "shared.weight, decoder.embed_tokens" (T5: one table of both stacks). FSDP2 refuses embedding
/// and head as units of their own then, since each parameter belongs to one unit. Embedding and
/// head that share with each other alone form one unit. Nothing where the policy does not split
/// them.
std::optional<std::string> tie_across_root_split(const Model& model, const WrapPolicy& policy);

}  // namespace foreshard
