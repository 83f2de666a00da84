#pragma once

// Strong units of the whole project. Integers for what is counted (bytes, floating-point
// operations, elements, time), doubles for rates. Nothing converts silently: `.value` is the way
// out, and text formatting lives in core/format.h.

#include <compare>
#include <concepts>
#include <cstdint>

namespace foreshard {

/// A counted quantity with its own type; `Tag` only keeps quantities apart. Plain 64-bit signed
/// value, no checks.
template <typename Tag>
struct Quantity {
  std::int64_t value = 0;

  constexpr Quantity() = default;
  constexpr explicit Quantity(std::int64_t v) : value(v) {}
  constexpr auto operator<=>(const Quantity&) const = default;

  constexpr Quantity& operator+=(Quantity o) {
    value += o.value;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity o) {
    value -= o.value;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value + b.value);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value - b.value);
  }
  friend constexpr Quantity operator*(Quantity a, std::int64_t n) { return Quantity(a.value * n); }
  friend constexpr Quantity operator*(std::int64_t n, Quantity a) { return Quantity(a.value * n); }
  /// A fraction would be cut to a whole number without a word: go through double by hand.
  friend constexpr Quantity operator*(Quantity, std::floating_point auto) = delete;
  friend constexpr Quantity operator*(std::floating_point auto, Quantity) = delete;
  friend constexpr Quantity operator/(Quantity, std::floating_point auto) = delete;
  /// Truncating division by a count.
  friend constexpr Quantity operator/(Quantity a, std::int64_t n) { return Quantity(a.value / n); }
  /// Ratio of two like quantities.
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.value) / static_cast<double>(b.value);
  }
};

using Bytes = Quantity<struct BytesTag>;
using Flops =
    Quantity<struct FlopsTag>;  ///< Floating-point operations (a multiply-add counts two).
using Elements = Quantity<struct ElementsTag>;

/// A span of time or an instant since the start of a run: int64 picoseconds, range +-106 days.
using Time = Quantity<struct TimeTag>;

inline constexpr std::int64_t kPicosecondsPerSecond = 1'000'000'000'000;
constexpr Time picoseconds(std::int64_t n) { return Time(n); }
constexpr Time nanoseconds(std::int64_t n) { return Time(n * 1'000); }
constexpr Time microseconds(std::int64_t n) { return Time(n * 1'000'000); }
constexpr Time milliseconds(std::int64_t n) { return Time(n * 1'000'000'000); }
constexpr Time seconds(std::int64_t n) { return Time(n * kPicosecondsPerSecond); }
namespace detail {
/// The whole part; INT64_MAX for what is beyond the range or no number, -INT64_MAX below it, so
/// that each can be negated.
constexpr std::int64_t saturated(double x) {
  if (x <= -0x1p63) return -INT64_MAX;
  return x < 0x1p63 ? static_cast<std::int64_t>(x) : INT64_MAX;
}
}  // namespace detail

/// Rounds to the nearest picosecond; saturates at the ends of the range.
constexpr Time from_seconds(double s) {
  const double ps = s * static_cast<double>(kPicosecondsPerSecond);
  return Time(detail::saturated(ps + (ps >= 0 ? 0.5 : -0.5)));
}
constexpr double to_seconds(Time t) {
  return static_cast<double>(t.value) / static_cast<double>(kPicosecondsPerSecond);
}

/// A rate per second; `Tag` keeps bytes and flops apart.
template <typename Tag>
struct Rate {
  double per_second = 0;
  constexpr Rate() = default;
  constexpr explicit Rate(double v) : per_second(v) {}
  constexpr auto operator<=>(const Rate&) const = default;
  friend constexpr Rate operator*(Rate r, double f) { return Rate(r.per_second * f); }
};

using BytesPerSecond = Rate<struct BytesTag>;
using FlopsPerSecond = Rate<struct FlopsTag>;

/// Time to move `n` at rate `r`, rounded up to a picosecond; saturates (a rate of zero takes
/// forever).
template <typename Tag>
constexpr Time operator/(Quantity<Tag> n, Rate<Tag> r) {
  const double ps =
      static_cast<double>(n.value) / r.per_second * static_cast<double>(kPicosecondsPerSecond);
  const std::int64_t whole = detail::saturated(ps);
  return Time(whole + (whole < INT64_MAX && static_cast<double>(whole) < ps ? 1 : 0));
}

namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return Bytes(static_cast<std::int64_t>(n)); }
constexpr Bytes operator""_kB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) * 1'000);
}
constexpr Bytes operator""_MB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) * 1'000'000);
}
constexpr Bytes operator""_GB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) * 1'000'000'000);
}
constexpr Bytes operator""_KiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 10);
}
constexpr Bytes operator""_MiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 20);
}
constexpr Bytes operator""_GiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 30);
}
}  // namespace literals

}  // namespace foreshard
