#include <algorithm>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "core/integers.h"
#include "exec/kernels/kernel_functions.h"
#include "exec/kernels/kernels.h"
#include "exec/kernels/rows.h"

namespace foreshard::kernels {
namespace {

/// The part [begin, begin + size) of dimension `dim`.
TensorView slice(const TensorView& v, int dim, std::int64_t begin, std::int64_t size) {
  TensorView out = v;
  const auto d = static_cast<std::size_t>(dim);
  out.shape[d] = size;
  out.data += begin * v.stride[d] * size_of(v.dtype);
  return out;
}

/// `count` elements from `offset` of a flat view.
TensorView flat_part(const TensorView& flat, std::int64_t offset, std::int64_t count) {
  if (flat.rank != 1) kernel_error("the flat operand has shape " + shape_text(flat));
  if (offset + count > flat.shape[0])
    kernel_error(fmt::format("{} elements do not hold the parts", flat.shape[0]));
  return slice(flat, 0, offset, count);
}

}  // namespace

void fill(const KernelCall& c) {
  const TensorView& y = output(c, 0);
  const double value = c.attribute(0, 0);
  if (value == 0) return fill_zero(y);
  const std::vector<float> values(static_cast<std::size_t>(y.numel()), static_cast<float>(value));
  from_floats(y, values.data());
}

void copy(const KernelCall& c) {
  const TensorView& x = input(c, 0);
  const TensorView& y = output(c, 0);
  copy_elements(x.numel() == y.numel() ? x : broadcast_to(x, y.rank, y.shape), y);
}

void cat(const KernelCall& c) {
  const TensorView& y = output(c, 0);
  const int dim = dimension_attribute(c, 0, 0, y.rank);
  std::int64_t at = 0;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const TensorView& x = input(c, i);
    const std::int64_t size = x.shape[static_cast<std::size_t>(dim)];
    if (at + size > y.shape[static_cast<std::size_t>(dim)])
      kernel_error("the parts exceed " + shape_text(y));
    copy_elements(x, slice(y, dim, at, size));
    at += size;
  }
}

void arange(const KernelCall& c) {
  const TensorView& y = output(c, 0);
  const double start = c.attribute(0, 0), step = c.attribute(1, 1);
  for (std::int64_t i = 0; i < y.numel(); ++i)
    store_element(y, i, start + step * static_cast<double>(i));
}

void foreach_copy(const KernelCall& c) {
  if (c.inputs.size() != c.outputs.size()) kernel_error("as many inputs as outputs are needed");
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    if (!c.inputs[i].present || !c.outputs[i].present) continue;
    copy_elements(c.inputs[i], c.outputs[i]);
  }
}

void split_copy(const KernelCall& c) {
  const TensorView& whole = input(c, 0);
  if (whole.rank != 2) kernel_error("the whole has shape " + shape_text(whole));
  const std::int64_t w = whole.shape[0];
  std::int64_t at = 0;
  for (std::size_t i = 0; i < c.outputs.size(); ++i) {
    const TensorView& y = output(c, i);
    if (y.numel() == 0) continue;
    const std::int64_t columns = y.numel() / w;
    if (columns * w != y.numel() || at + columns > whole.shape[1]) {
      kernel_error(fmt::format("output {} of shape {} cannot be cut from {} at column {}", i,
                               shape_text(y), shape_text(whole), at));
    }
    copy_elements(slice(whole, 1, at, columns), y);
    at += columns;
  }
}

void chunk_cat(const KernelCall& c) {
  const TensorView& y = output(c, 0);
  if (y.rank != 2) kernel_error("the output has shape " + shape_text(y));
  const std::int64_t w = y.shape[0];
  fill_zero(y);
  std::int64_t at = 0;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const TensorView& x = input(c, i);
    if (x.numel() == 0) continue;
    const std::size_t which = c.attributes.size() > 1 ? i : 0;
    const int dim = dimension_attribute(c, which, 0, x.rank);
    const std::int64_t size = x.shape[static_cast<std::size_t>(dim)], chunk = ceil_div(size, w);
    const std::int64_t outer_inner = x.numel() / size, columns = chunk * outer_inner;
    if (at + columns > y.shape[1])
      kernel_error(fmt::format("input {} does not fit into {}", i, shape_text(y)));
    for (std::int64_t r = 0; r * chunk < size; ++r) {
      const std::int64_t rows = std::min(chunk, size - r * chunk);
      TensorView part = slice(x, dim, r * chunk, rows);
      TensorView target = slice(y.at(r), 0, at, columns);
      // The chunk's own row-major order, padded along dim: for dim 0 the padding is at the end.
      target.rank = x.rank;
      std::int64_t stride = target.stride[0];
      for (int d = x.rank - 1; d >= 0; --d) {
        const auto k = static_cast<std::size_t>(d);
        target.shape[k] = part.shape[k];
        target.stride[k] = stride;
        stride *= d == dim ? chunk : part.shape[k];
      }
      copy_elements(part, target);
    }
    at += columns;
  }
}

void flatten(const KernelCall& c) {
  const TensorView& y = output(c, 0);
  std::int64_t at = 0;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    if (!c.inputs[i].present) continue;
    copy_elements(c.inputs[i], flat_part(y, at, c.inputs[i].numel()));
    at += c.inputs[i].numel();
  }
  fill_zero(flat_part(y, at, y.numel() - at));
}

void unflatten(const KernelCall& c) {
  const TensorView& x = input(c, 0);
  std::int64_t at = 0;
  for (const TensorView& y : c.outputs) {
    if (!y.present) continue;
    copy_elements(flat_part(x, at, y.numel()), y);
    at += y.numel();
  }
}

}  // namespace foreshard::kernels
