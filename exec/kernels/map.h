#pragma once

// Element-wise application of a scalar function with broadcasting and any storage types.

#include <algorithm>
#include <array>
#include <cstdint>

#include "exec/kernels/rows.h"
#include "exec/tensor_view.h"

namespace foreshard {

namespace map_detail {

inline constexpr std::int64_t kChunk = 512;

template <std::size_t N, typename F>
void run(const TensorView& y, std::array<TensorView, N> inputs, F apply) {
  if (y.numel() == 0) return;
  std::array<TensorView, N + 1> all;
  all[0] = y;
  for (std::size_t k = 0; k < N; ++k) all[k + 1] = broadcast_to(inputs[k], y.rank, y.shape);
  float in[N][kChunk], out[kChunk];
  RowLoop(all).run([&](std::int64_t n, std::byte* const* data, const std::int64_t* strides) {
    for (std::int64_t at = 0; at < n; at += kChunk) {
      const std::int64_t m = std::min(kChunk, n - at);
      for (std::size_t k = 0; k < N; ++k) {
        load_row(all[k + 1].dtype, data[k + 1] + at * strides[k + 1] * size_of(all[k + 1].dtype),
                 strides[k + 1], m, in[k]);
      }
      for (std::int64_t i = 0; i < m; ++i) out[i] = apply(in, i);
      store_row(y.dtype, data[0] + at * strides[0] * size_of(y.dtype), strides[0], m, out);
    }
  });
}

}  // namespace map_detail

/// y = f(x), y = f(a, b), y = f(a, b, c): inputs broadcast to y. y may be one of the inputs.
template <typename F>
void map(const TensorView& y, const TensorView& x, F f) {
  map_detail::run<1>(y, {x}, [f](auto& in, std::int64_t i) { return f(in[0][i]); });
}
template <typename F>
void map(const TensorView& y, const TensorView& a, const TensorView& b, F f) {
  map_detail::run<2>(y, {a, b}, [f](auto& in, std::int64_t i) { return f(in[0][i], in[1][i]); });
}
template <typename F>
void map(const TensorView& y, const TensorView& a, const TensorView& b, const TensorView& c, F f) {
  map_detail::run<3>(y, {a, b, c},
                     [f](auto& in, std::int64_t i) { return f(in[0][i], in[1][i], in[2][i]); });
}

}  // namespace foreshard
