#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cli/command.h"
#include "cli/quantity.h"
#include "core/parse_number.h"
#include "core/text.h"

namespace foreshard::cli {

const Arguments::Value* Arguments::find(const std::string& name) const {
  const auto it = values_.find(name);
  return it == values_.end() ? nullptr : &it->second;
}

std::string Arguments::positional(std::size_t i, std::string fallback) const {
  return i < positionals_.size() ? positionals_[i] : fallback;
}

std::string Arguments::text(const std::string& name, std::string fallback) const {
  const Value* v = find(name);
  return v == nullptr ? fallback : v->text;
}

std::int64_t Arguments::integer(const std::string& name, std::int64_t fallback, std::int64_t min,
                                std::int64_t max) {
  const Value* v = find(name);
  if (v == nullptr) return fallback;
  const auto n = parse_number<std::int64_t>(without_separators(v->text).value_or(""));
  const std::string allowed = fmt::format("allowed: whole numbers from {} to {}", min, max);
  if (!n) {
    report(name, fmt::format("\"{}\" is not a whole number", v->text), allowed);
    return fallback;
  }
  if (*n < min || *n > max) {
    report(name, fmt::format("{} is out of range", *n), allowed);
    return fallback;
  }
  return *n;
}

double Arguments::number(const std::string& name, double fallback, double min, double max) {
  const Value* v = find(name);
  if (v == nullptr) return fallback;
  const auto x = parse_number<double>(v->text);
  if (!x || !std::isfinite(*x) || *x < min || *x > max) {
    report(name, fmt::format("\"{}\" is not a number in range", v->text),
           fmt::format("allowed: {} to {}", min, max));
    return fallback;
  }
  return *x;
}

std::int64_t Arguments::count(const std::string& name, std::int64_t fallback, std::int64_t min,
                              std::int64_t max, double thousand) {
  const Value* v = find(name);
  if (v == nullptr) return fallback;
  const std::optional<double> x = parse_count(v->text, thousand);
  if (x && *x >= static_cast<double>(min) && *x <= static_cast<double>(max) && *x == std::floor(*x))
    return static_cast<std::int64_t>(*x);
  const std::string near = nearest_count(v->text);
  report(
      name,
      x ? fmt::format("{} is out of range or no whole number", v->text)
        : fmt::format("\"{}\" is not a whole number{}", v->text,
                      near.empty() ? "" : ", nearest is \"" + near + "\""),
      fmt::format("allowed: whole numbers from {} to {}; k = {:.0f}, e.g. 8k", min, max, thousand));
  return fallback;
}

double Arguments::bytes(const std::string& name, double fallback, double unit, double min,
                        double max) {
  const Value* v = find(name);
  if (v == nullptr) return fallback;
  const std::optional<double> x = parse_bytes(v->text, unit);
  if (x && *x >= min && *x <= max) return *x;
  const std::string near = nearest_bytes(v->text);
  report(name,
         fmt::format("\"{}\" is not a number of bytes in range{}", v->text,
                     x || near.empty() ? "" : ", nearest is " + near),
         fmt::format("allowed: {:.4g} to {:.4g} bytes, as 1GB (10^9) or 1GiB (2^30)", min, max));
  return fallback;
}

bool Arguments::yes_no(const std::string& name, bool fallback) {
  const Value* v = find(name);
  if (v == nullptr) return fallback;
  if (v->text == "yes" || v->text == "true") return true;
  if (v->text == "no" || v->text == "false") return false;
  report(name, fmt::format("found \"{}\"", v->text), "allowed: yes, no");
  return fallback;
}

std::vector<std::string> Arguments::list(const std::string& name) const {
  std::vector<std::string> out = parts_of(text(name), ',');
  std::erase(out, "");
  return out;
}

void Arguments::report(const std::string& option, std::string message, std::string hint) {
  const Value* v = find(option);
  const bool from_file = v != nullptr && v->where.rfind("--", 0) != 0;
  Issue issue{from_file ? v->where : "--" + option, from_file ? option : "", std::move(message),
              std::move(hint)};
  // An option that is read twice is wrong once.
  const auto same = [text = issue.text()](const Issue& i) { return i.text() == text; };
  if (std::none_of(issues_.begin(), issues_.end(), same)) issues_.push_back(std::move(issue));
}

void Arguments::report(const InputError& error) {
  issues_.insert(issues_.end(), error.issues().begin(), error.issues().end());
}

void Arguments::check() const {
  if (!issues_.empty()) throw InputError(issues_);
}

}  // namespace foreshard::cli
