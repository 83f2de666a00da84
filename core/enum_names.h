#pragma once

// Tables with a row for each value of an enumeration, checked when compiled: a value that is added
// to an enumeration and forgotten in its table is an error of the compiler, wherever it is
// inserted.

#include <cstddef>
#include <string_view>

namespace foreshard {
namespace detail {

/// True if Value has a name in its enumeration. GCC and Clang write a named value as
/// "Kind::kName" and another as "(Kind)7".
template <auto Value>
constexpr bool is_named() {
  const std::string_view text = __PRETTY_FUNCTION__;
  const std::size_t cast = text.rfind(')');
  return cast == text.npos || text[cast + 1] < '0' || text[cast + 1] > '9';
}

template <typename Enum, std::size_t N = 0>
constexpr std::size_t count_enumerators() {
  if constexpr (is_named<static_cast<Enum>(N)>())
    return count_enumerators<Enum, N + 1>();
  else
    return N;
}

}  // namespace detail

/// Number of values of an enumeration whose values are 0, 1, 2, ...
template <typename Enum>
inline constexpr std::size_t kEnumerators = detail::count_enumerators<Enum>();

/// A value and how it is written.
template <typename Enum>
struct EnumName {
  Enum value;
  std::string_view name;
};

/// Each value of the enumeration once, in its order: for the static_assert beside a table whose
/// rows have a member that is the key.
template <typename Enum, typename Row, std::size_t N>
constexpr bool has_row_for_each(const Row (&rows)[N], Enum Row::*key) {
  if (N != kEnumerators<Enum>) return false;
  for (std::size_t i = 0; i < N; ++i)
    if (rows[i].*key != static_cast<Enum>(i)) return false;
  return true;
}
template <typename Enum, std::size_t N>
constexpr bool names_each(const EnumName<Enum> (&rows)[N]) {
  return has_row_for_each(rows, &EnumName<Enum>::value);
}

/// The name of a value; empty if the table leaves it out.
template <typename Enum, std::size_t N>
constexpr std::string_view name_in(const EnumName<Enum> (&rows)[N], Enum value) {
  for (const EnumName<Enum>& row : rows)
    if (row.value == value) return row.name;
  return {};
}

}  // namespace foreshard
