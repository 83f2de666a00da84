#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "exec/kernels/kernel_functions.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/rows.h"

namespace foreshard::kernels {

// X with A X = B, A unit triangular [.., n, n], B [.., n, m]; attribute 0: A is upper, else lower.
// The diagonal and the other half of A are not read (torch.linalg.solve_triangular, unitriangular).
void solve_triangular(const KernelCall& c) {
  const TensorView &a = input(c, 0), &b = input(c, 1);
  if (a.rank != b.rank || a.rank < 2)
    kernel_error(fmt::format("a {} and b {} do not fit", shape_text(a), shape_text(b)));
  const auto rows = static_cast<std::size_t>(b.shape[static_cast<std::size_t>(b.rank - 2)]);
  const auto columns = static_cast<std::size_t>(b.shape[static_cast<std::size_t>(b.rank - 1)]);
  const bool upper = c.attribute(0, 0) != 0;
  const std::vector<float> matrix = to_floats(a);
  std::vector<float> x = to_floats(b);
  for (std::size_t block = 0; rows * columns > 0 && block < x.size() / (rows * columns); ++block) {
    const float* m = matrix.data() + block * rows * rows;
    float* v = x.data() + block * rows * columns;
    for (std::size_t k = 0; k < rows; ++k) {
      const std::size_t i = upper ? rows - 1 - k : k;
      for (std::size_t j = upper ? i + 1 : 0; j < (upper ? rows : i); ++j) {
        for (std::size_t n = 0; n < columns; ++n)
          v[i * columns + n] -= m[i * rows + j] * v[j * columns + n];
      }
    }
  }
  from_floats(output(c, 0), x.data());
}

}  // namespace foreshard::kernels
