#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace foreshard {

/// Values of `SymTensorImpl::grad_dtype` besides a DType: the leaf's own dtype (PyTorch's default),
/// or whatever dtype autograd delivers (`param.grad_dtype = None`).
inline constexpr std::int8_t kOwnGradDtype = -1, kAnyGradDtype = -2;

/// Dtype of a function of two floating dtypes (torch.promote_types): the wider one, fp32 for bf16
/// with fp16.
constexpr DType promoted(DType a, DType b) {
  if (a == b) return a;
  if (size_of(a) == size_of(b)) return DType::kFloat32;
  return size_of(a) > size_of(b) ? a : b;
}

}  // namespace foreshard
