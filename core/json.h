#pragma once

// Reading JSON that people and foreign programs wrote. nlohmann/json is slow to compile: but for
// the few that tests/cli/layering_test.py names, headers take core/json_fwd.h.

#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/json_fwd.h"

namespace foreshard {

/// Limits of every reader: a file of at most 1 GiB, nesting of at most 200 levels.
inline constexpr std::uintmax_t kLargestJsonFile = std::uintmax_t{1} << 30;
inline constexpr int kDeepestJson = 200;

/// Parses text. InputError for what is no JSON (with line and column), and for duplicate keys, NaN,
/// whole numbers beyond int64 and nesting deeper than kDeepestJson (which name key or number).
Json parse_json(std::string_view text, const std::string& file);
/// Reads a file (".gz" is unpacked) and parses it; InputError if it cannot be read.
Json read_json_file(const std::filesystem::path& path);
/// The bytes of a file (".gz" unpacked); InputError if it cannot be read or is larger than
/// kLargestJsonFile.
std::string read_text_file(const std::filesystem::path& path);
/// The value, or JSON's null.
template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

/// Reads one JSON object key by key into typed values, collecting every problem into an IssueList.
/// Keys never asked for are reported by `finish()` with the nearest known key.
class ObjectReader {
 public:
  /// `path` names the object for messages ("" for the top level). A value that is not an object is
  /// reported at once.
  ObjectReader(const Json& object, std::string path, IssueList& issues);

  bool has(std::string_view key);         ///< Present and not null. Marks the key as known.
  bool is_null(std::string_view key);     ///< Present and null. Marks the key as known.
  const Json* get(std::string_view key);  ///< The value or nullptr. Marks the key as known.
  std::string path_of(std::string_view key) const;  ///< "outer.key"

  /// Each returns `fallback` where the key is absent or null, and reports a wrong type or range.
  std::int64_t integer(std::string_view key, std::int64_t fallback, std::int64_t min,
                       std::int64_t max);
  double number(std::string_view key, double fallback, double min, double max);
  bool boolean(std::string_view key, bool fallback);
  std::string string(std::string_view key, std::string fallback);
  /// One of `allowed`; anything else is reported with the nearest one.
  std::string choice(std::string_view key, std::string fallback,
                     const std::vector<std::string>& allowed);
  /// As above but absence is an issue.
  std::int64_t required_integer(std::string_view key, std::int64_t min, std::int64_t max);
  std::string required_string(std::string_view key);
  std::optional<std::vector<std::int64_t>> integer_list(std::string_view key, std::int64_t min,
                                                        std::int64_t max);
  std::optional<std::vector<std::string>> string_list(std::string_view key);

  void ignore(std::string_view key) { get(key); }  ///< Known and without meaning for us.
  /// Reports every key that was never asked for.
  void finish();
  void report(std::string_view key, std::string message, std::string hint = {});
  IssueList& issues() { return issues_; }

 private:
  const Json* object_;
  std::string path_;
  IssueList& issues_;
  std::vector<std::string> known_;
};

/// A short description of a value for messages: `12`, `"abc"`, `a list of 3`, `an object`, `null`.
std::string describe_json(const Json& value);

}  // namespace foreshard
