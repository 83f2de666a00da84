#pragma once

#include "core/op_kind.h"

namespace foreshard {

/// Kernels that torch.compile generates itself and therefore fuses with their neighbours.
bool compiler_generates(OpKind op);

/// The partitioner may run it again in backward (get_default_op_list of
/// torch/_functorch/partitioners.py, PyTorch 2.15): generated kernels but for concatenations and
/// lower triangles. Random masks are the caller's exception.
bool may_run_again(OpKind op);

}  // namespace foreshard
