#pragma once

#include <concepts>

namespace foreshard {

/// n / d rounded up. n >= 0, d > 0.
template <std::integral N, std::integral D>
constexpr N ceil_div(N n, D d) {
  return (n + static_cast<N>(d) - 1) / static_cast<N>(d);
}
/// The smallest multiple of `step` that is at least n. n >= 0, step > 0.
template <std::integral N, std::integral D>
constexpr N round_up(N n, D step) {
  return ceil_div(n, step) * static_cast<N>(step);
}

}  // namespace foreshard
