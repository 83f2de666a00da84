#include "core/format.h"

#include <fmt/format.h>

#include <cmath>

namespace foreshard {
namespace {

/// Three significant digits without an exponent.
std::string three_digits(double v) {
  const double a = std::fabs(v);
  if (a >= 100 || a == 0) return fmt::format("{:.0f}", v);
  if (a >= 10) return fmt::format("{:.1f}", v);
  return fmt::format("{:.2f}", v);
}

struct Scale {
  double unit;
  const char* name;
};

template <std::size_t N>
std::string scaled(double v, const Scale (&scales)[N]) {
  for (const Scale& s : scales) {
    if (std::fabs(v) >= s.unit * 0.9995) return three_digits(v / s.unit) + " " + s.name;
  }
  return three_digits(v / scales[N - 1].unit) + " " + scales[N - 1].name;
}

}  // namespace

std::string format_memory(Bytes b) {
  static constexpr Scale kScales[] = {{1099511627776.0, "TiB"},
                                      {1073741824.0, "GiB"},
                                      {1048576.0, "MiB"},
                                      {1024.0, "KiB"},
                                      {1.0, "B"}};
  return scaled(static_cast<double>(b.value), kScales);
}

std::string format_bytes_decimal(Bytes b) {
  static constexpr Scale kScales[] = {
      {1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1.0, "B"}};
  return scaled(static_cast<double>(b.value), kScales);
}

std::string format_time(Time t) {
  static constexpr Scale kScales[] = {
      {1e12, "s"}, {1e9, "ms"}, {1e6, "us"}, {1e3, "ns"}, {1.0, "ps"}};
  return scaled(static_cast<double>(t.value), kScales);
}

std::string format_signed_time(Time t) {
  if (t.value == 0) return "0";
  return (t.value < 0 ? "" : "+") + format_time(t);
}

std::string format_rate(BytesPerSecond r) {
  static constexpr Scale kScales[] = {
      {1e12, "TB/s"}, {1e9, "GB/s"}, {1e6, "MB/s"}, {1e3, "kB/s"}, {1.0, "B/s"}};
  return scaled(r.per_second, kScales);
}

std::string format_count(double n) {
  static constexpr Scale kScales[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}};
  if (std::fabs(n) < 1000) return three_digits(n);
  for (const Scale& s : kScales) {
    if (std::fabs(n) >= s.unit) return fmt::format("{:.2f} {}", n / s.unit, s.name);
  }
  return three_digits(n);
}

std::string with_thousands(std::int64_t n) {
  const auto bits = static_cast<std::uint64_t>(n);
  std::string digits = std::to_string(n < 0 ? 0 - bits : bits);  // INT64_MIN has no negative
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return n < 0 ? "-" + digits : digits;
}

std::string retries_text(std::int64_t in_last_step, std::int64_t in_all_steps) {
  const std::int64_t n = in_last_step > 0 ? in_last_step : in_all_steps;
  return fmt::format("{} allocator {} {}", n, n == 1 ? "retry" : "retries",
                     in_last_step > 0 ? "a step" : "in earlier steps");
}

}  // namespace foreshard
