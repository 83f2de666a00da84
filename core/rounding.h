#pragma once

#include "core/dtype.h"

namespace foreshard {

/// Largest relative error of rounding a number to a dtype: half the distance of 1 to the next
/// number. 0 for integers.
constexpr double rounding_unit(DType t) {
  switch (t) {
    case DType::kFloat64:
      return 0x1p-53;
    case DType::kFloat32:
      return 0x1p-24;
    case DType::kFloat16:
      return 0x1p-11;
    case DType::kBFloat16:
      return 0x1p-8;
    case DType::kFloat8E4M3:
      return 0x1p-4;
    case DType::kFloat8E5M2:
      return 0x1p-3;
    default:
      return 0;
  }
}

}  // namespace foreshard
