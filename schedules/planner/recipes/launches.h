#pragma once

// Launches of element-wise kernels, without autograd: what functions and their gradients share.

#include <span>

#include "schedules/planner/host/host_impl.h"

namespace foreshard {

/// An empty result for operand `a`. TensorIterator keeps the order of strides of its first full
/// operand.
SymTensor result_like(Host& h, const Shape& shape, DType dtype, const SymTensor& a);
/// Two operands, broadcast and promoted.
SymTensor launch_binary(Host& h, OpKind op, const SymTensor& a, const SymTensor& b);
/// One or two operands of one shape and perhaps a scalar.
SymTensor launch_map(Host& h, OpKind op, std::span<const SymTensor> in, double scalar);
SymTensor launch_unary(Host& h, OpKind op, const SymTensor& x, double value = 0);

}  // namespace foreshard
