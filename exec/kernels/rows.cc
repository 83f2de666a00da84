#include "exec/kernels/rows.h"

#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "exec/kernels/convert.h"

namespace foreshard {
namespace {

/// Calls f with a null pointer of the storage type.
template <typename F>
void with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(static_cast<float*>(nullptr));
    case DType::kBFloat16:
      return f(static_cast<BFloat16*>(nullptr));
    case DType::kFloat16:
      return f(static_cast<Float16*>(nullptr));
    case DType::kFloat64:
      return f(static_cast<double*>(nullptr));
    case DType::kInt64:
      return f(static_cast<std::int64_t*>(nullptr));
    case DType::kInt32:
      return f(static_cast<std::int32_t*>(nullptr));
    case DType::kUInt8:
    case DType::kBool:
      return f(static_cast<std::uint8_t*>(nullptr));
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      break;
  }
  throw RunError("no CPU kernel for " + std::string(name_of(dtype)));
}

bool is_integer(DType t) { return !is_floating(t); }

template <typename T>
void copy_same_type(std::int64_t n, const std::byte* from, std::int64_t from_stride, std::byte* to,
                    std::int64_t to_stride) {
  if (from_stride == 1 && to_stride == 1) {
    std::memmove(to, from, static_cast<std::size_t>(n) * sizeof(T));
    return;
  }
  const T* a = reinterpret_cast<const T*>(from);
  T* b = reinterpret_cast<T*>(to);
  for (std::int64_t i = 0; i < n; ++i) b[i * to_stride] = a[i * from_stride];
}

std::vector<float> row_buffer(std::int64_t n) {
  return std::vector<float>(static_cast<std::size_t>(n));
}

bool same_shape(const TensorView& a, const TensorView& b) {
  if (a.rank != b.rank) return false;
  for (int d = 0; d < a.rank; ++d) {
    if (a.shape[static_cast<std::size_t>(d)] != b.shape[static_cast<std::size_t>(d)]) return false;
  }
  return true;
}

}  // namespace

void load_row(DType dtype, const std::byte* data, std::int64_t stride, std::int64_t n, float* out) {
  with_type(dtype, [&](auto* tag) {
    const auto* p = reinterpret_cast<const std::remove_pointer_t<decltype(tag)>*>(data);
    for (std::int64_t i = 0; i < n; ++i) out[i] = widen(p[i * stride]);
  });
}

void store_row(DType dtype, std::byte* data, std::int64_t stride, std::int64_t n, const float* in) {
  with_type(dtype, [&](auto* tag) {
    auto* p = reinterpret_cast<std::remove_pointer_t<decltype(tag)>*>(data);
    if (dtype == DType::kBool) {
      for (std::int64_t i = 0; i < n; ++i) narrow(in[i] != 0 ? 1.0f : 0.0f, &p[i * stride]);
      return;
    }
    for (std::int64_t i = 0; i < n; ++i) narrow(in[i], &p[i * stride]);
  });
}

RowLoop::RowLoop(std::span<const TensorView> operands) {
  const TensorView& first = operands[0];
  for (const TensorView& v : operands) {
    bases_.push_back(v.data);
    widths_.push_back(size_of(v.dtype));
    strides_.emplace_back();
    if (!same_shape(v, first))
      throw InternalError("row loop over " + shape_text(v) + " and " + shape_text(first));
  }
  // Outer to inner; a dimension joins the one before it if that one's stride is its whole extent in
  // every operand.
  int out = -1;
  for (int d = 0; d < first.rank; ++d) {
    const auto dim = static_cast<std::size_t>(d);
    if (first.shape[dim] == 1) continue;
    bool joins = out >= 0;
    for (std::size_t k = 0; joins && k < operands.size(); ++k) {
      joins =
          strides_[k][static_cast<std::size_t>(out)] == operands[k].stride[dim] * first.shape[dim];
    }
    if (joins) {
      shape_[static_cast<std::size_t>(out)] *= first.shape[dim];
    } else {
      shape_[static_cast<std::size_t>(++out)] = first.shape[dim];
    }
    for (std::size_t k = 0; k < operands.size(); ++k)
      strides_[k][static_cast<std::size_t>(out)] = operands[k].stride[dim];
  }
  if (out < 0) {
    shape_[0] = first.numel();  // one element, or none
    out = 0;
  }
  rank_ = out + 1;
}

std::vector<float> to_floats(const TensorView& v) {
  std::vector<float> values(static_cast<std::size_t>(v.numel()));
  if (values.empty()) return values;
  float* out = values.data();
  RowLoop(std::span(&v, 1))
      .run([&](std::int64_t n, std::byte* const* data, const std::int64_t* strides) {
        load_row(v.dtype, data[0], strides[0], n, out);
        out += n;
      });
  return values;
}

std::vector<std::int64_t> to_integers(const TensorView& v) {
  std::vector<std::int64_t> values;
  values.reserve(static_cast<std::size_t>(v.numel()));
  if (v.numel() == 0) return values;
  RowLoop(std::span(&v, 1))
      .run([&](std::int64_t n, std::byte* const* data, const std::int64_t* strides) {
        with_type(v.dtype, [&](auto* tag) {
          using T = std::remove_pointer_t<decltype(tag)>;
          const T* p = reinterpret_cast<const T*>(data[0]);
          for (std::int64_t i = 0; i < n; ++i) {
            if constexpr (std::is_integral_v<T>) {
              values.push_back(static_cast<std::int64_t>(p[i * strides[0]]));
            } else {
              values.push_back(static_cast<std::int64_t>(widen(p[i * strides[0]])));
            }
          }
        });
      });
  return values;
}

void from_floats(const TensorView& v, const float* values) {
  if (v.numel() == 0) return;
  RowLoop(std::span(&v, 1))
      .run([&](std::int64_t n, std::byte* const* data, const std::int64_t* strides) {
        store_row(v.dtype, data[0], strides[0], n, values);
        values += n;
      });
}

namespace {

/// Writes element `index` (row-major) of any strided view, converted to its dtype.
template <typename Value>
void store_at(const TensorView& v, std::int64_t index, Value value) {
  std::int64_t rest = index, offset = 0;
  for (int d = v.rank - 1; d >= 0; --d) {
    const auto dim = static_cast<std::size_t>(d);
    offset += rest % v.shape[dim] * v.stride[dim];
    rest /= v.shape[dim];
  }
  std::byte* at = v.data + offset * size_of(v.dtype);
  with_type(v.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    if constexpr (std::is_arithmetic_v<T>) {
      *reinterpret_cast<T*>(at) = static_cast<T>(value);
    } else {
      narrow(static_cast<float>(value), reinterpret_cast<T*>(at));
    }
  });
}

}  // namespace

void from_integers(const TensorView& v, const std::int64_t* values) {
  for (std::int64_t i = 0; i < v.numel(); ++i) store_at(v, i, values[i]);
}

void store_element(const TensorView& v, std::int64_t index, double value) {
  store_at(v, index, value);
}

float scalar_of(const TensorView& v) {
  if (v.numel() != 1)
    throw RunError("one value was expected, found a tensor of shape " + shape_text(v));
  float value = 0;
  load_row(v.dtype, v.data, 1, 1, &value);
  return value;
}

void copy_elements(const TensorView& from, const TensorView& to) {
  if (from.numel() != to.numel()) {
    throw RunError(fmt::format("cannot copy a tensor of shape {} to one of shape {}",
                               shape_text(from), shape_text(to)));
  }
  if (to.numel() == 0) return;
  if (!same_shape(from, to)) {
    if (is_integer(from.dtype) && is_integer(to.dtype))
      return from_integers(to, to_integers(from).data());
    return from_floats(to, to_floats(from).data());
  }
  const std::array<TensorView, 2> both{from, to};
  RowLoop(both).run([&](std::int64_t n, std::byte* const* data, const std::int64_t* strides) {
    if (from.dtype == to.dtype) {
      with_type(to.dtype, [&](auto* tag) {
        copy_same_type<std::remove_pointer_t<decltype(tag)>>(n, data[0], strides[0], data[1],
                                                             strides[1]);
      });
      return;
    }
    std::vector<float> row = row_buffer(n);
    load_row(from.dtype, data[0], strides[0], n, row.data());
    store_row(to.dtype, data[1], strides[1], n, row.data());
  });
}

void fill_zero(const TensorView& v) {
  if (v.numel() == 0) return;
  RowLoop(std::span(&v, 1))
      .run([&](std::int64_t n, std::byte* const* data, const std::int64_t* strides) {
        const std::vector<float> zeros(static_cast<std::size_t>(n), 0.0f);
        store_row(v.dtype, data[0], strides[0], n, zeros.data());
      });
}

TensorView broadcast_to(const TensorView& v, int rank,
                        const std::array<std::int64_t, kMaxRank>& shape) {
  TensorView out = v;
  out.rank = rank;
  out.shape = shape;
  // Leading dimensions of size 1 may exceed the rank of the result.
  int extra = v.rank - rank;
  for (int d = 0; d < extra; ++d) {
    if (v.shape[static_cast<std::size_t>(d)] != 1) extra = -kMaxRank - 1;
  }
  for (int d = 0; d < rank && extra >= -kMaxRank; ++d) {
    const int source = d + v.rank - rank;
    const auto to = static_cast<std::size_t>(d);
    out.stride[to] = 0;
    if (source < 0) continue;
    const auto from = static_cast<std::size_t>(source);
    if (v.shape[from] == shape[to]) {
      out.stride[to] = v.stride[from];
    } else if (v.shape[from] != 1) {
      extra = -kMaxRank - 1;
    }
  }
  if (extra < -kMaxRank) {
    TensorView target = out;
    throw RunError(fmt::format("a tensor of shape {} does not broadcast to {}", shape_text(v),
                               shape_text(target)));
  }
  return out;
}

TensorView transposed(const TensorView& v, int a, int b) {
  TensorView out = v;
  std::swap(out.shape[static_cast<std::size_t>(a)], out.shape[static_cast<std::size_t>(b)]);
  std::swap(out.stride[static_cast<std::size_t>(a)], out.stride[static_cast<std::size_t>(b)]);
  return out;
}

std::string shape_text(const TensorView& v) {
  return fmt::format("[{}]", fmt::join(v.shape.begin(), v.shape.begin() + v.rank, ", "));
}

}  // namespace foreshard
