#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "core/json.h"
#include "schedules/names.h"

namespace foreshard {

/// One row of a table: a list with cells in a fixed order. Reports the row's path once for its
/// first fault.
class Row {
 public:
  Row(const Json& row, const std::string& path, IssueList& issues)
      : row_(row), path_(path), issues_(issues) {
    if (!row.is_array()) fail(fmt::format("found {}, expected a list", describe_json(row)));
  }

  std::int64_t integer(std::int64_t min, std::int64_t max) {
    const Json* cell = next();
    if (cell == nullptr) return min;
    if (!cell->is_number_integer())
      return fail(fmt::format("cell {} is {}, expected an integer", at_, describe_json(*cell))),
             min;
    if (cell->is_number_unsigned() &&
        cell->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
      return fail(fmt::format("cell {} is too large", at_)), min;
    const auto n = cell->get<std::int64_t>();
    if (n < min || n > max)
      fail(fmt::format("cell {} is {}; allowed are {} to {}", at_, n, min, max));
    return n < min || n > max ? min : n;
  }
  /// An index, or null for "none".
  template <typename IdType>
  IdType id() {
    if (at_ < size() && row_[at_].is_null()) return ++at_, IdType();
    return IdType(static_cast<std::uint32_t>(integer(0, UINT32_MAX - 1)));
  }
  double real() {
    const Json* cell = next();
    return cell == nullptr ? 0 : real_of(*cell);
  }
  bool boolean() {
    const Json* cell = next();
    if (cell == nullptr) return false;
    if (!cell->is_boolean())
      return fail(fmt::format("cell {} is {}, expected true or false", at_, describe_json(*cell))),
             false;
    return cell->get<bool>();
  }
  template <typename Enum>
  Enum name(int count) {
    const Json* cell = next();
    if (cell == nullptr) return Enum{};
    if (cell->is_string()) {
      if (const auto found = parse_enum<Enum>(cell->get_ref<const std::string&>(), count))
        return *found;
    }
    const std::string found = cell->is_string() ? cell->get<std::string>() : "";
    const std::string near = nearest_name(found, enum_names<Enum>(count));
    fail(fmt::format("cell {} is {}, which is no name of this table{}", at_, describe_json(*cell),
                     near.empty() ? "" : fmt::format("; nearest is \"{}\"", near)));
    return Enum{};
  }
  /// A list inside the row; `read` gets each element.
  template <typename Read>
  void list(std::size_t most, Read read) {
    const Json* cell = next();
    if (cell == nullptr) return;
    if (!cell->is_array())
      return fail(fmt::format("cell {} is {}, expected a list", at_, describe_json(*cell)));
    if (cell->size() > most)
      return fail(fmt::format("cell {} has {} entries; at most {}", at_, cell->size(), most));
    for (const Json& x : *cell) read(x);
  }
  std::int64_t integer_of(const Json& x, std::int64_t min, std::int64_t max) {
    if (x.is_number_integer() &&
        !(x.is_number_unsigned() &&
          x.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))) {
      const auto n = x.get<std::int64_t>();
      if (n >= min && n <= max) return n;
    }
    fail(fmt::format("cell {} contains {}; allowed are integers from {} to {}", at_,
                     describe_json(x), min, max));
    return min;
  }
  double real_of(const Json& x) {
    if (x.is_number()) return x.get<double>();
    if (x == "nan") return std::nan("");
    if (x == "inf") return INFINITY;
    if (x == "-inf") return -INFINITY;
    fail(fmt::format("cell {} contains {}, expected a number", at_, describe_json(x)));
    return 0;
  }
  std::size_t left() const { return size() - std::min(size(), at_); }
  void end() {
    if (at_ < size()) fail(fmt::format("has {} cells, expected {}", size(), at_));
  }

 private:
  std::size_t size() const { return row_.is_array() ? row_.size() : 0; }
  const Json* next() {
    if (at_ < size()) return &row_[at_++];
    fail(fmt::format("has only {} cells", size()));
    return nullptr;
  }
  void fail(std::string message) {
    if (failed_) return;
    failed_ = true;
    issues_.add(path_, std::move(message));
  }

  const Json& row_;
  const std::string& path_;
  IssueList& issues_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

}  // namespace foreshard
