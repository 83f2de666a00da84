#pragma once

// torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True), piece by piece: frameworks
// put their reduction of the norms between the pieces.

#include <optional>

#include "schedules/planner/foreach.h"
#include "schedules/planner/frameworks/framework.h"

namespace foreshard {

/// torch._foreach_norm: one scalar for each tensor, with its table and partial sums.
TensorList foreach_norms(Host& host, const TensorList& gradients);
/// torch.stack of scalars.
SymTensor stack_scalars(Host& host, const TensorList& scalars);
/// torch.linalg.vector_norm of a contiguous tensor, in its own dtype or the given one.
SymTensor vector_norm(Host& host, const SymTensor& x, std::optional<DType> dtype = {});
/// _clip_grads_with_norm_: coefficient min(1, max_norm / (norm + 1e-6)), then one in-place product
/// over all gradients.
void scale_gradients(Host& host, const TensorList& gradients, const SymTensor& norm,
                     double max_norm);
/// Hands the norm to the reader of the run (executable programs only).
void observe_norm(Host& host, const SymTensor& norm);

}  // namespace foreshard
