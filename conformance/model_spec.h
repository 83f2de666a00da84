#pragma once

// Model specs of the golden cases: a JSON tree of nodes (Linear, LayerNorm, RMSNorm, BatchNorm1d,
// Embedding, Experts, MultiheadAttention, Container with a straight-line forward program,
// ModuleList, Alias) read into a Model. A container's "class" is the class of its module.

#include <optional>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "models/module_tree.h"
#include "schedules/planner/config.h"

namespace foreshard {

struct ModelSpec {
  Model model;
  /// Names of parameters that are stored transposed, hence not contiguous (F2-G-4).
  std::vector<std::string> non_contiguous;
};

/// What Linear and LayerNorm do with an input of another dtype than their weight, and RMSNorm with
/// its weight: the models of FSDP2's recordings take it as it is and have a fused RMSNorm; those of
/// the other frameworks' recordings cast it, and multiply by the weight apart.
enum class LeafInputs { kAsGiven, kCastToWeight };

/// Reads `case.model` with the case's `dtype`, `tied`, `frozen_params` and `inputs`. InputError on
/// an unknown kind or name.
ModelSpec read_model_spec(const Json& golden_case, LeafInputs leaf_inputs = LeafInputs::kAsGiven);

/// The parameter called `name` ("layers.0.wq.weight"), by any of its owners; invalid id if there is
/// none.
ParameterId find_parameter(const Model& model, const std::string& name);

/// A module of torch.nn or torch's own functions, not a container of the spec: it computes with its
/// own parameters.
bool is_leaf(const Module& m);

/// A dtype by its long name; InputError if unknown.
DType dtype_of(const Json& name);
/// The dtype under `key`; none where it is absent or null.
std::optional<DType> dtype_or_none(const Json& object, const char* key);
/// reshard_after_forward as recorded: null for the default, a truth, or ranks of the smaller group.
Reshard reshard_of(const Json& value);

}  // namespace foreshard
