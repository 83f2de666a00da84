#pragma once

#include <functional>
#include <string>

#include "exec/calls.h"

namespace foreshard {

/// Once before a run: RunError if the library of matrix products is not on this machine.
void prepare_kernels();

/// Executes one launch on host memory. Throws RunError, naming rank, instruction and op, if the
/// operands do not fit the op (docs/formats/op_operands.md) or the op has no CPU kernel.
void run_kernel(const KernelCall& call);
/// Executes one copy; fills in a model input where the call names one.
void run_copy(const CopyCall& call);

using KernelFunction = void (*)(const KernelCall&);
/// The kernel of an op kind; null if there is none.
KernelFunction kernel_for(OpKind op);

/// For kernels: operands that do not fit. Becomes a RunError with the call's origin.
[[noreturn]] void kernel_error(const std::string& what);

/// The operand, which must be present.
const TensorView& input(const KernelCall& call, std::size_t i);
const TensorView& output(const KernelCall& call, std::size_t i);
/// An integer attribute; a dimension counted from the end if negative.
std::int64_t integer_attribute(const KernelCall& call, std::size_t i, std::int64_t otherwise);
int dimension_attribute(const KernelCall& call, std::size_t i, int otherwise, int rank);

}  // namespace foreshard
