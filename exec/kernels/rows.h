#pragma once

// Access to strided views of any storage type as fp32 rows: the common ground of all kernels.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "exec/tensor_view.h"

namespace foreshard {

/// Reads `n` elements, `stride` elements apart, from `data`, widened to fp32.
void load_row(DType dtype, const std::byte* data, std::int64_t stride, std::int64_t n, float* out);
/// Writes them, rounded to the storage type.
void store_row(DType dtype, std::byte* data, std::int64_t stride, std::int64_t n, const float* in);

/// The whole view in row-major order.
std::vector<float> to_floats(const TensorView& v);
std::vector<std::int64_t> to_integers(const TensorView& v);
void from_floats(const TensorView& v, const float* values);
void from_integers(const TensorView& v, const std::int64_t* values);
/// One element by its row-major index; integers are written exactly.
void store_element(const TensorView& v, std::int64_t index, double value);
/// The value of a view of one element.
float scalar_of(const TensorView& v);

/// Copies every element in row-major order of both views, converting the type; the same numel, any
/// shapes and strides.
void copy_elements(const TensorView& from, const TensorView& to);
void fill_zero(const TensorView& v);

/// The view broadcast to a shape of `rank` dimensions, aligned at the last one. Throws RunError if
/// it does not fit.
TensorView broadcast_to(const TensorView& v, int rank,
                        const std::array<std::int64_t, kMaxRank>& shape);
/// A view with dimensions a and b exchanged.
TensorView transposed(const TensorView& v, int a, int b);
std::string shape_text(const TensorView& v);

/// Walks operands of one shape row by row, after merging dimensions that are consecutive in all of
/// them.
class RowLoop {
 public:
  /// All operands must have the shape of the first.
  explicit RowLoop(std::span<const TensorView> operands);

  /// Calls f(n, data, strides) for each row: n elements per operand k from data[k], strides[k]
  /// elements apart.
  template <typename F>
  void run(F f) const {
    const std::size_t count = bases_.size();
    std::vector<std::byte*> data = bases_;
    std::vector<std::int64_t> inner(count);
    for (std::size_t k = 0; k < count; ++k)
      inner[k] = strides_[k][static_cast<std::size_t>(rank_ - 1)];
    const std::int64_t n = shape_[static_cast<std::size_t>(rank_ - 1)];
    std::int64_t rows = n > 0 ? 1 : 0;
    for (int d = 0; d + 1 < rank_; ++d) rows *= shape_[static_cast<std::size_t>(d)];
    for (std::int64_t r = 0; r < rows; ++r) {
      std::int64_t rest = r;
      for (std::size_t k = 0; k < count; ++k) data[k] = bases_[k];
      for (int d = rank_ - 2; d >= 0; --d) {
        const auto dim = static_cast<std::size_t>(d);
        const std::int64_t i = rest % shape_[dim];
        rest /= shape_[dim];
        for (std::size_t k = 0; k < count; ++k) data[k] += i * strides_[k][dim] * widths_[k];
      }
      f(n, data.data(), inner.data());
    }
  }

 private:
  int rank_ = 1;
  std::array<std::int64_t, kMaxRank> shape_{};
  std::vector<std::array<std::int64_t, kMaxRank>> strides_;
  std::vector<std::byte*> bases_;
  std::vector<std::int64_t> widths_;
};

}  // namespace foreshard
