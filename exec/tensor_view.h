#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "schedules/schedule.h"

namespace foreshard {

/// A schedule's tensor with its buffer resolved to memory: what kernels and transports work on.
/// Strides count elements; 0 broadcasts. An absent operand has `present` false; a present view of
/// zero elements may have no data.
struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  bool present = false;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= shape[d];
    return n;
  }
  std::int64_t bytes() const { return numel() * size_of(dtype); }

  /// Row-major without gaps.
  bool contiguous() const {
    std::int64_t expected = 1;
    for (int d = rank - 1; d >= 0; --d) {
      if (shape[d] == 1) continue;
      if (stride[d] != expected) return false;
      expected *= shape[d];
    }
    return true;
  }

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }

  /// The same view without its first dimension, at index `i` of it.
  TensorView at(std::int64_t i) const {
    TensorView v = *this;
    v.data += i * stride[0] * size_of(dtype);
    v.rank = rank - 1;
    for (int d = 0; d < v.rank; ++d) {
      v.shape[d] = shape[d + 1];
      v.stride[d] = stride[d + 1];
    }
    return v;
  }
};

}  // namespace foreshard
