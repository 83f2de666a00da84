#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace foreshard {

/// The whole text as a number; nothing if it is none, does not fit into `Number`, or goes on behind
/// it. Without spaces, a leading "+" and the locale's marks; "inf" and "nan" are numbers.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || end != last) return std::nullopt;
  return value;
}

}  // namespace foreshard
