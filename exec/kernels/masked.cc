#include <cmath>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "exec/kernels/kernel_functions.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/rows.h"

namespace foreshard::kernels {

// y = x, its elements at true positions of the mask replaced by those of `source` in order.
void masked_scatter(const KernelCall& c) {
  const TensorView &x = input(c, 0), &y = output(c, 0);
  std::vector<float> values = to_floats(x);
  const std::vector<float> mask = to_floats(broadcast_to(input(c, 1), x.rank, x.shape)),
                           source = to_floats(input(c, 2));
  std::size_t next = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (mask[i] == 0) continue;
    if (next == source.size())
      kernel_error(fmt::format("more than {} elements are masked", source.size()));
    values[i] = source[next++];
  }
  from_floats(y, values.data());
}

// The masked elements in order; the rest of y is zero.
void masked_select(const KernelCall& c) {
  const TensorView &x = input(c, 0), &y = output(c, 0);
  const std::vector<float> values = to_floats(x),
                           mask = to_floats(broadcast_to(input(c, 1), x.rank, x.shape));
  std::vector<float> out(static_cast<std::size_t>(y.numel()), 0.0f);
  std::size_t next = 0;
  for (std::size_t i = 0; i < values.size() && next < out.size(); ++i) {
    if (mask[i] != 0) out[next++] = values[i];
  }
  from_floats(y, out.data());
}

// T5Attention._relative_position_bucket of transformers: exact near, logarithmic far.
void relative_bucket(const KernelCall& c) {
  const std::vector<std::int64_t> distances = to_integers(input(c, 0));
  const bool bidirectional = c.attribute(0, 1) != 0;
  std::int64_t buckets = integer_attribute(c, 1, 32);
  const double furthest = c.attribute(2, 128);
  if (bidirectional) buckets /= 2;
  const std::int64_t exact = buckets / 2;
  std::vector<std::int64_t> out(distances.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t d =
        bidirectional ? std::abs(distances[i]) : -std::min<std::int64_t>(distances[i], 0);
    std::int64_t bucket = d;
    if (d >= exact) {
      const double ratio = std::log(static_cast<double>(d) / static_cast<double>(exact)) /
                           std::log(furthest / static_cast<double>(exact));
      bucket =
          std::min(exact + static_cast<std::int64_t>(ratio * static_cast<double>(buckets - exact)),
                   buckets - 1);
    }
    out[i] = bucket + (bidirectional && distances[i] > 0 ? buckets : 0);
  }
  from_integers(output(c, 0), out.data());
}

}  // namespace foreshard::kernels
