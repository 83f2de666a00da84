#include "exec/transport/reduce.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "core/error.h"
#include "exec/kernels/convert.h"

namespace foreshard {
namespace {

/// Type in which values of storage type T are added.
template <typename T>
using Accumulator =
    std::conditional_t<std::is_integral_v<T>, std::uint64_t,
                       std::conditional_t<std::is_same_v<T, double>, double, float>>;

template <typename T>
Accumulator<T> load(const T& v) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<Accumulator<T>>(v);
  } else {
    return widen(v);
  }
}

template <typename T>
void store(Accumulator<T> v, T* out) {
  if constexpr (std::is_arithmetic_v<T>) {
    *out = static_cast<T>(v);
  } else {
    narrow(v, out);
  }
}

template <typename T>
Accumulator<T> finish(Accumulator<T> sum, ReduceOp op, std::size_t n) {
  if (op != ReduceOp::kAverage) return sum;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(sum) /
                                      static_cast<std::int64_t>(n));
  } else {
    return sum / static_cast<Accumulator<T>>(n);
  }
}

template <typename T>
void reduce_typed(ReduceOp op, double factor, std::span<const std::byte* const> sources,
                  std::int64_t count, std::byte* out) {
  T* result = reinterpret_cast<T*>(out);
  for (std::int64_t i = 0; i < count; ++i) {
    Accumulator<T> value = load(reinterpret_cast<const T*>(sources[0])[i]);
    if (op == ReduceOp::kPreMulSum) value = static_cast<Accumulator<T>>(value * factor);
    for (std::size_t s = 1; s < sources.size(); ++s) {
      const T& source = reinterpret_cast<const T*>(sources[s])[i];
      Accumulator<T> v = load(source);
      if (op == ReduceOp::kMax) {
        if constexpr (std::is_integral_v<T>) {
          value = static_cast<T>(value) < source ? v : value;
        } else {
          value = std::max(value, v);
        }
      } else {
        if (op == ReduceOp::kPreMulSum) v = static_cast<Accumulator<T>>(v * factor);
        value += v;
      }
    }
    store<T>(finish<T>(value, op, sources.size()), &result[i]);
  }
}

}  // namespace

void reduce_elements(DType dtype, ReduceOp op, double factor,
                     std::span<const std::byte* const> sources, std::int64_t count,
                     std::byte* out) {
  switch (dtype) {
    case DType::kFloat32:
      return reduce_typed<float>(op, factor, sources, count, out);
    case DType::kFloat64:
      return reduce_typed<double>(op, factor, sources, count, out);
    case DType::kBFloat16:
      return reduce_typed<BFloat16>(op, factor, sources, count, out);
    case DType::kFloat16:
      return reduce_typed<Float16>(op, factor, sources, count, out);
    case DType::kInt64:
      return reduce_typed<std::int64_t>(op, factor, sources, count, out);
    case DType::kInt32:
      return reduce_typed<std::int32_t>(op, factor, sources, count, out);
    case DType::kUInt8:
      return reduce_typed<std::uint8_t>(op, factor, sources, count, out);
    default:
      throw RunError("no reduction of " + std::string(name_of(dtype)));
  }
}

}  // namespace foreshard
