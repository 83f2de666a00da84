#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "exec/kernels/kernel_functions.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/rows.h"

namespace foreshard::kernels {
namespace {

void check_index(std::int64_t index, std::int64_t size) {
  if (index < 0 || index >= size)
    kernel_error(fmt::format("index {} is outside [0, {})", index, size));
}

/// The row `i` along `dim` with that dimension removed.
TensorView row_of(const TensorView& v, int dim, std::int64_t i) {
  TensorView out = v;
  out.data += i * v.stride[static_cast<std::size_t>(dim)] * size_of(v.dtype);
  out.rank = v.rank - 1;
  for (int d = dim; d < out.rank; ++d) {
    out.shape[static_cast<std::size_t>(d)] = v.shape[static_cast<std::size_t>(d + 1)];
    out.stride[static_cast<std::size_t>(d)] = v.stride[static_cast<std::size_t>(d + 1)];
  }
  return out;
}

/// Row-major position in x of the element that `index` picks for the position `flat` of the index
/// tensor.
class Picker {
 public:
  Picker(const TensorView& picked, const TensorView& index, int dim)
      : picked_(picked), index_(index), dim_(dim) {
    std::int64_t stride = 1;
    for (int d = picked.rank - 1; d >= 0; --d) {
      strides_[static_cast<std::size_t>(d)] = stride;
      stride *= picked.shape[static_cast<std::size_t>(d)];
    }
  }
  std::int64_t operator()(std::int64_t flat, std::int64_t index) const {
    check_index(index, picked_.shape[static_cast<std::size_t>(dim_)]);
    std::int64_t at = index * strides_[static_cast<std::size_t>(dim_)];
    for (int d = index_.rank - 1; d >= 0; --d) {
      const auto k = static_cast<std::size_t>(d);
      if (d != dim_) at += flat % index_.shape[k] * strides_[k];
      flat /= index_.shape[k];
    }
    return at;
  }

 private:
  const TensorView& picked_;
  const TensorView& index_;
  int dim_;
  std::array<std::int64_t, kMaxRank> strides_{};
};

}  // namespace

void embedding(const KernelCall& c) {
  const TensorView& weight = input(c, 0);
  const std::vector<std::int64_t> indices = to_integers(input(c, 1));
  const auto width = static_cast<std::size_t>(weight.shape[1]);
  std::vector<float> out(indices.size() * width);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    check_index(indices[i], weight.shape[0]);
    const TensorView row = weight.at(indices[i]);
    load_row(row.dtype, row.data, row.stride[0], row.shape[0], out.data() + i * width);
  }
  if (output(c, 0).numel() != static_cast<std::int64_t>(out.size()))
    kernel_error("the output has the wrong size");
  from_floats(output(c, 0), out.data());
}

void embedding_backward(const KernelCall& c) {
  const std::vector<float> grad = to_floats(input(c, 0));
  const std::vector<std::int64_t> indices = to_integers(input(c, 1));
  const TensorView& out = output(c, 0);
  const std::int64_t padding = integer_attribute(c, 0, -1);
  const auto width = static_cast<std::size_t>(out.shape[1]);
  if (grad.size() != indices.size() * width) kernel_error("gradient and indices do not fit");
  std::vector<float> sums(static_cast<std::size_t>(out.numel()), 0.0f);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    check_index(indices[i], out.shape[0]);
    if (indices[i] == padding) continue;
    float* row = sums.data() + static_cast<std::size_t>(indices[i]) * width;
    for (std::size_t k = 0; k < width; ++k) row[k] += grad[i * width + k];
  }
  from_floats(out, sums.data());
}

void gather(const KernelCall& c) {
  const TensorView& x = input(c, 0);
  const TensorView& index = input(c, 1);
  const std::vector<float> values = to_floats(x);
  const std::vector<std::int64_t> indices = to_integers(index);
  const Picker pick(x, index, dimension_attribute(c, 0, 0, x.rank));
  std::vector<float> out(indices.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = values[static_cast<std::size_t>(pick(static_cast<std::int64_t>(i), indices[i]))];
  }
  from_floats(output(c, 0), out.data());
}

void scatter(const KernelCall& c) {
  const TensorView& index = input(c, 0);
  const TensorView& y = output(c, 0);
  const std::vector<std::int64_t> indices = to_integers(index);
  const std::vector<float> source = to_floats(input(c, 1));
  const Picker pick(y, index, dimension_attribute(c, 0, 0, y.rank));
  const bool adds = c.attribute(1, 0) != 0;
  std::vector<float> out(static_cast<std::size_t>(y.numel()), 0.0f);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    float& target = out[static_cast<std::size_t>(pick(static_cast<std::int64_t>(i), indices[i]))];
    target = adds ? target + source[i] : source[i];
  }
  from_floats(y, out.data());
}

void index_select(const KernelCall& c) {
  const TensorView& x = input(c, 0);
  const int dim = dimension_attribute(c, 0, 0, x.rank);
  const std::vector<std::int64_t> indices = to_integers(input(c, 1));
  for (std::size_t i = 0; i < indices.size(); ++i) {
    check_index(indices[i], x.shape[static_cast<std::size_t>(dim)]);
    copy_elements(row_of(x, dim, indices[i]),
                  row_of(output(c, 0), dim, static_cast<std::int64_t>(i)));
  }
}

void index_add(const KernelCall& c) {
  const TensorView& y = output(c, 0);
  const int dim = dimension_attribute(c, 0, 0, y.rank);
  const std::vector<std::int64_t> indices = to_integers(input(c, 1));
  if (input(c, 0).data != y.data) copy_elements(input(c, 0), y);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    check_index(indices[i], y.shape[static_cast<std::size_t>(dim)]);
    const TensorView row = row_of(y, dim, indices[i]);
    std::vector<float> sum = to_floats(row);
    const std::vector<float> added =
        to_floats(row_of(input(c, 2), dim, static_cast<std::int64_t>(i)));
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += added[k];
    from_floats(row, sum.data());
  }
}

void histogram(const KernelCall& c) {
  const TensorView& y = output(c, 0);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(y.numel()), 0);
  for (const std::int64_t i : to_integers(input(c, 0))) {
    check_index(i, y.numel());
    ++counts[static_cast<std::size_t>(i)];
  }
  from_integers(y, counts.data());
}

}  // namespace foreshard::kernels
