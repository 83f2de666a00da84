#include "hwprofiles/short_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/parse_number.h"

namespace foreshard {

void bad_machine_name(const std::string& typed, std::string message, std::string hint) {
  throw InputError({"--on " + typed, "", std::move(message), std::move(hint)});
}

namespace {

constexpr double kFastestNetwork = 100'000;  ///< Gb/s of one NIC that a name may ask for.

std::optional<int> parse_count(std::string_view text) {
  const auto n = parse_number<int>(text);
  return n && *n >= 1 ? n : std::nullopt;
}

void require_possible_rate(const std::string& typed, std::optional<double> rate,
                           std::string_view text, const std::string& hint) {
  if (rate && *rate > 0 && *rate <= kFastestNetwork) return;
  bad_machine_name(typed, fmt::format("\"{}\" is no network rate in Gb/s", text),
           fmt::format("above 0, at most {:.0f}; {}", kFastestNetwork, hint));
}

/// "400g", "4x100g", "400g-roce" into `name`.
void parse_network_suffix(const std::string& typed, std::string_view text,
                          const std::vector<std::string>& networks, ShortName& name) {
  const std::string hint = fmt::format("such as @400g, @4x100g, @400g-roce (kinds: {})",
                                       fmt::join(networks, ", "));
  if (const auto dash = text.find('-'); dash != std::string_view::npos) {
    name.network_kind = text.substr(dash + 1);
    text = text.substr(0, dash);
  }
  if (const auto x = text.find('x'); x != std::string_view::npos) {
    const auto nics = parse_count(text.substr(0, x));
    if (!nics || *nics > 4096) bad_machine_name(typed, fmt::format("\"{}\" is no network", text), hint);
    name.nics = *nics;
    text = text.substr(x + 1);
  }
  if (!text.ends_with('g'))
    bad_machine_name(typed, fmt::format("\"{}\" is no network rate in Gb/s", text), hint);
  name.rate = parse_number<double>(text.substr(0, text.size() - 1));
  require_possible_rate(typed, name.rate, text, hint);
}

}  // namespace

ShortName parse_short_name(const std::string& typed, const std::vector<std::string>& networks) {
  ShortName name;
  std::string_view text = typed;
  if (const auto at = text.find('@'); at != std::string_view::npos) {
    parse_network_suffix(typed, text.substr(at + 1), networks, name);
    text = text.substr(0, at);
  }
  if (const auto x = text.find("x-"); x != std::string_view::npos && x > 0) {
    if (const auto n = parse_count(text.substr(0, x))) {
      name.multiplier = *n;
      text = text.substr(x + 2);
    }
  }
  if (const auto dash = text.rfind('-');
      dash != std::string_view::npos && text.ends_with('g') && !name.rate) {
    if (const auto rate = parse_number<double>(text.substr(dash + 1, text.size() - dash - 2))) {
      require_possible_rate(typed, rate, text.substr(dash + 1), "such as 2x-a100-80-200g");
      name.rate = rate;
      name.rate_by_dash = true;
      text = text.substr(0, dash);
    }
  }
  name.base = text;
  return name;
}

}  // namespace foreshard
