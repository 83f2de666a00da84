#pragma once

#include <compare>
#include <cstdint>

namespace foreshard {

/// An index into one table, with a type of its own. Default: "none".
template <typename Tag>
struct Id {
  std::uint32_t value = UINT32_MAX;
  constexpr Id() = default;
  constexpr explicit Id(std::uint32_t v) : value(v) {}
  constexpr bool valid() const { return value != UINT32_MAX; }
  constexpr auto operator<=>(const Id&) const = default;
};

}  // namespace foreshard
