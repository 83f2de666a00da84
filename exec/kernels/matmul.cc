#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "exec/kernels/blas.h"
#include "exec/kernels/gemm.h"
#include "exec/kernels/kernel_functions.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/map.h"
#include "exec/kernels/rows.h"

namespace foreshard {
namespace {

/// A matrix as BLAS wants it: the view itself where its strides allow it, otherwise a packed copy.
struct Packed {
  explicit Packed(const TensorView& v) {
    const bool fp32 = v.dtype == DType::kFloat32;
    const auto leading = [](std::int64_t stride, std::int64_t extent, std::int64_t others) {
      return others <= 1 ? std::max<std::int64_t>(extent, 1) : stride;
    };
    const std::int64_t row = leading(v.stride[0], v.shape[1], v.shape[0]);
    const std::int64_t column = leading(v.stride[1], v.shape[0], v.shape[1]);
    if (fp32 && (v.stride[1] == 1 || v.shape[1] == 1) && row >= v.shape[1]) {
      data = v.as<float>();
      ld = row;
    } else if (fp32 && (v.stride[0] == 1 || v.shape[0] == 1) && column >= v.shape[0]) {
      data = v.as<float>();
      ld = column;
      transposed = true;
    } else {
      copy = to_floats(v);
      data = copy.data();
      ld = std::max<std::int64_t>(v.shape[1], 1);
    }
  }
  const float* data = nullptr;
  std::int64_t ld = 1;
  bool transposed = false;
  std::vector<float> copy;
};

void blas(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, std::int64_t m, std::int64_t n, std::int64_t k,
          float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
          float beta, float* c, std::int64_t ldc) {
  sgemm()(CblasRowMajor, ta, tb, static_cast<blasint>(m), static_cast<blasint>(n),
          static_cast<blasint>(k), alpha, a, static_cast<blasint>(lda), b,
          static_cast<blasint>(ldb), beta, c, static_cast<blasint>(ldc));
}

/// Merges the leading dimensions of a into its rows where strides allow, if b is one matrix: [..,
/// m, k] x [k, n].
bool merge_rows(TensorView& a, TensorView& c) {
  while (a.rank > 2) {
    const auto outer = static_cast<std::size_t>(a.rank - 3),
               rows = static_cast<std::size_t>(a.rank - 2);
    if (a.stride[outer] != a.stride[rows] * a.shape[rows] ||
        c.stride[outer] != c.stride[rows] * c.shape[rows])
      return false;
    for (TensorView* v : {&a, &c}) {
      v->shape[outer] *= v->shape[rows];
      v->stride[outer] = v->stride[rows];
      v->shape[rows] = v->shape[rows + 1];
      v->stride[rows] = v->stride[rows + 1];
      --v->rank;
    }
  }
  return true;
}

/// Broadcasts the batch dimensions of v to those of c; the last two stay.
TensorView with_batch_of(const TensorView& v, const TensorView& c) {
  std::array<std::int64_t, kMaxRank> shape = c.shape;
  for (int d = 1; d <= 2; ++d) {
    shape[static_cast<std::size_t>(c.rank - d)] = v.shape[static_cast<std::size_t>(v.rank - d)];
  }
  return broadcast_to(v, c.rank, shape);
}

void multiply_batched(const TensorView& a, const TensorView& b, const TensorView& c) {
  if (c.rank == 2) return multiply(a, b, c);
  for (std::int64_t i = 0; i < c.shape[0]; ++i) multiply_batched(a.at(i), b.at(i), c.at(i));
}

/// A vector operand becomes a matrix of one row (left) or one column (right).
TensorView as_matrix(const TensorView& v, bool left) {
  if (v.rank != 1) return v;
  TensorView out = v;
  out.rank = 2;
  out.shape[left ? 1 : 0] = v.shape[0];
  out.stride[left ? 1 : 0] = v.stride[0];
  out.shape[left ? 0 : 1] = 1;
  out.stride[left ? 0 : 1] = 0;
  return out;
}

void product(TensorView a, TensorView b, TensorView c) {
  a = as_matrix(a, true);
  b = as_matrix(b, false);
  if (c.rank < 2 || a.rank > c.rank || b.rank > c.rank) {
    kernel_error(
        fmt::format("{} x {} does not give {}", shape_text(a), shape_text(b), shape_text(c)));
  }
  if (b.rank == 2 && a.rank == c.rank && merge_rows(a, c)) return multiply(a, b, c);
  multiply_batched(with_batch_of(a, c), with_batch_of(b, c), c);
}

}  // namespace

void gemm(const Gemm& g, const float* a, const float* b, float* c) {
  if (g.m == 0 || g.n == 0) return;
  blas(g.transpose_a ? CblasTrans : CblasNoTrans, g.transpose_b ? CblasTrans : CblasNoTrans, g.m,
       g.n, g.k, g.alpha, a, std::max<std::int64_t>(g.transpose_a ? g.m : g.k, 1), b,
       std::max<std::int64_t>(g.transpose_b ? g.k : g.n, 1), g.beta, c, g.n);
}

void multiply(const TensorView& a, const TensorView& b, const TensorView& c) {
  const std::int64_t m = a.shape[0], k = a.shape[1], n = b.shape[1];
  if (b.shape[0] != k || c.shape[0] != m || c.shape[1] != n) {
    kernel_error(
        fmt::format("{} x {} does not give {}", shape_text(a), shape_text(b), shape_text(c)));
  }
  if (m == 0 || n == 0) return;
  if (k == 0) return fill_zero(c);
  const Packed pa(a), pb(b);
  const auto flag = [](const Packed& p) { return p.transposed ? CblasTrans : CblasNoTrans; };
  const bool direct = c.dtype == DType::kFloat32 && c.stride[1] == 1 && c.stride[0] >= n;
  std::vector<float> scratch(direct ? 0 : static_cast<std::size_t>(m * n));
  float* out = direct ? c.as<float>() : scratch.data();
  blas(flag(pa), flag(pb), m, n, k, 1.0f, pa.data, pa.ld, pb.data, pb.ld, 0.0f, out,
       direct ? c.stride[0] : n);
  if (!direct) from_floats(c, out);
}

namespace kernels {

void matmul(const KernelCall& c) { product(input(c, 0), input(c, 1), output(c, 0)); }

// The bias is added to the fp32 product before it is rounded, as addmm does.
void matmul_bias(const KernelCall& c) {
  const TensorView& y = output(c, 0);
  std::vector<float> values(static_cast<std::size_t>(y.numel()));
  TensorView wide = y;
  wide.dtype = DType::kFloat32;
  wide.data = reinterpret_cast<std::byte*>(values.data());
  std::int64_t stride = 1;
  for (int d = y.rank - 1; d >= 0; --d) {
    wide.stride[static_cast<std::size_t>(d)] = stride;
    stride *= y.shape[static_cast<std::size_t>(d)];
  }
  product(input(c, 1), input(c, 2), wide);
  map(y, wide, input(c, 0), [](float product_value, float bias) { return product_value + bias; });
}

namespace {
TensorView rows_of(TensorView matrix, std::int64_t from, std::int64_t rows) {
  if (rows < 0 || from + rows > matrix.shape[0])
    kernel_error("the groups have more rows than the matrix");
  matrix.shape[0] = rows;
  matrix.data += from * matrix.stride[0] * size_of(matrix.dtype);
  return matrix;
}

TensorView transposed(TensorView matrix) {
  std::swap(matrix.shape[0], matrix.shape[1]);
  std::swap(matrix.stride[0], matrix.stride[1]);
  return matrix;
}
}  // namespace

// As torch._grouped_mm: rows of a, in groups, times a matrix for each group; with two plain
// matrices the groups' rows are summed over instead, one matrix a group comes out (the gradient of
// the weights).
void grouped_matmul(const KernelCall& c) {
  const TensorView &a = input(c, 0), &b = input(c, 1), &out = output(c, 0);
  const std::vector<std::int64_t> rows = to_integers(input(c, 2));
  const bool over_rows = out.rank == 3;
  if (a.rank != 2 || b.rank != (over_rows ? 2 : 3) || out.rank != (over_rows ? 3 : 2)) {
    kernel_error(
        fmt::format("{} x {} does not give {}", shape_text(a), shape_text(b), shape_text(out)));
  }
  std::int64_t at = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto group = static_cast<std::int64_t>(i);
    const TensorView part = rows_of(a, at, rows[i]);
    if (over_rows) {
      multiply(transposed(part), rows_of(b, at, rows[i]), out.at(group));
    } else {
      multiply(part, b.at(group), rows_of(out, at, rows[i]));
    }
    at += rows[i];
  }
}

}  // namespace kernels
}  // namespace foreshard
