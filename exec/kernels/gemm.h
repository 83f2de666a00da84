#pragma once

#include <cstdint>

#include "exec/tensor_view.h"

namespace foreshard {

/// c = alpha a b + beta c for fp32 row-major matrices of m x k and k x n; a and b may be given
/// transposed (as k x m and n x k). One thread.
struct Gemm {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  float alpha = 1, beta = 0;
};
void gemm(const Gemm& g, const float* a, const float* b, float* c);

/// c = a b for 2-D views of any strides and storage types, adding in fp32 and rounding once.
void multiply(const TensorView& a, const TensorView& b, const TensorView& c);

}  // namespace foreshard
