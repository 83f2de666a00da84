#pragma once

// Checks of models that people wrote: each adds issues with the module's path. Importers call the
// first, graph files all.

#include "core/error.h"
#include "models/module_tree.h"

namespace foreshard {

/// No tensor and no sum of tensors may leave the range of exact arithmetic (2^50 parameters).
void check_parameter_count(const Model& model, IssueList& issues);
/// Every value is made before it is used, every call and function gets a fitting number of values,
/// parameters and numbers.
void check_programs(const Model& model, IssueList& issues);
/// Parameters, buffers, arguments and the shapes that statements ask for have at most
/// kMostDimensions dimensions.
inline constexpr std::size_t kMostDimensions = 5;
void check_dimensions(const Model& model, IssueList& issues);
/// Modules must not call each other in a circle; the issue shows the path of the circle.
void check_call_circles(const Model& model, IssueList& issues);

}  // namespace foreshard
