#include "cli/quantity.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/text.h"

namespace foreshard::cli {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_separator(char c) { return c == ',' || c == '_'; }

/// A number and what follows it; nothing if it does not begin with one, or is not finite.
std::optional<std::pair<double, std::string>> number_and_rest(std::string_view text) {
  const std::optional<std::string> digits = without_separators(text);
  if (!digits) return std::nullopt;
  double x = 0;
  const auto [end, error] = std::from_chars(digits->data(), digits->data() + digits->size(), x);
  if (error != std::errc() || !std::isfinite(x)) return std::nullopt;
  return std::pair(x, std::string(end, digits->data() + digits->size()));
}

struct Unit {
  const char* name;
  double bytes;
};
constexpr Unit kByteUnits[] = {{"b", 1},
                               {"kb", 1e3},
                               {"mb", 1e6},
                               {"gb", 1e9},
                               {"tb", 1e12},
                               {"kib", 1024.0},
                               {"mib", 1024.0 * 1024},
                               {"gib", 1024.0 * 1024 * 1024},
                               {"tib", 1024.0 * 1024 * 1024 * 1024}};

/// Only what can stand in a number with a unit: digits, one point, and the letters after them.
std::string tidied(std::string_view text) {
  std::string digits, letters;
  for (const char c : text) {
    if (is_digit(c) && letters.empty()) digits += c;
    if (c == '.' && letters.empty() && digits.find('.') == std::string::npos) digits += c;
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 && !digits.empty()) letters += c;
  }
  return digits.empty() ? "" : digits + letters;
}

}  // namespace

std::optional<std::string> without_separators(std::string_view text) {
  const auto begin = std::find_if(text.begin(), text.end(), is_digit);
  const auto end =
      std::find_if_not(begin, text.end(), [](char c) { return is_digit(c) || is_separator(c); });
  if (std::none_of(text.begin(), text.end(), is_separator)) return std::string(text);
  if (std::any_of(text.begin(), begin, is_separator) || std::any_of(end, text.end(), is_separator))
    return std::nullopt;
  std::string out(text.begin(), begin);
  const auto first = std::find_if(begin, end, is_separator);
  if (first - begin > 3) return std::nullopt;
  for (auto at = begin; at != end;) {
    const auto next = std::find_if(at, end, is_separator);
    if (at != begin && next - at != 3) return std::nullopt;
    out.append(at, next);
    at = next == end ? end : std::next(next);
    if (next != end && at == end) return std::nullopt;
  }
  out.append(end, text.end());
  return out;
}

std::optional<double> parse_count(std::string_view text, double thousand) {
  const auto parts = number_and_rest(text);
  if (!parts) return std::nullopt;
  const auto& [x, rest] = *parts;
  if (rest.empty()) return x;
  const std::size_t power = std::string_view("kmbt").find(lower_case(rest));
  if (rest.size() != 1 || power == std::string_view::npos) return std::nullopt;
  return x * std::pow(thousand, static_cast<double>(power + 1));
}

std::optional<double> parse_bytes(std::string_view text, double unit) {
  const auto parts = number_and_rest(text);
  if (!parts) return std::nullopt;
  std::string rest = lower_case(parts->second);
  if (!rest.empty() && rest[0] == ' ') rest.erase(0, 1);
  if (rest.empty())
    return parts->second.empty() ? std::optional(parts->first * unit) : std::nullopt;
  for (const Unit& u : kByteUnits)
    if (rest == u.name) return parts->first * u.bytes;
  return std::nullopt;
}

std::string nearest_count(std::string_view text) {
  for (std::string s = tidied(text); !s.empty(); s.pop_back())
    if (parse_count(s, 1000)) return s;
  return "";
}

std::string nearest_bytes(std::string_view text) {
  const std::string s = tidied(text);
  const std::size_t letter = std::min(s.find_first_not_of("0123456789."), s.size());
  const std::string number = s.substr(0, letter);
  if (!parse_bytes(number, 1)) return "";
  const std::size_t scale =
      letter < s.size() ? std::string_view("kmgt").find(lower_case(s)[letter]) : std::string_view::npos;
  if (scale == std::string_view::npos) return number;
  const char capital = "KMGT"[scale];
  return number + (capital == 'K' ? 'k' : capital) + "B or " + number + capital + "iB";
}

}  // namespace foreshard::cli
