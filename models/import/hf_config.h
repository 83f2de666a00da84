#pragma once

// A Hugging Face config.json read the way the library reads it: each key with the default of its
// own model type, absent different from null, keys the model type does not declare ignored (and
// reported as warnings). Include only in .cc files.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace foreshard {

/// Largest accepted sizes: wide enough for any model, small enough that products of three fit int64
/// where they are formed.
inline constexpr std::int64_t kLargestWidth = 1 << 22;
inline constexpr std::int64_t kLargestVocabulary = 1 << 27;
inline constexpr std::int64_t kLargestLayers = 4096;
inline constexpr std::int64_t kLargestExperts = 1 << 14;

/// One JSON object of a config. Problems go to the IssueList (they make the config unusable), keys
/// that have no effect to the warnings. Not thread-safe; the referenced objects must outlive it.
class HfConfig {
 public:
  HfConfig(const Json& object, std::string path, IssueList& issues,
           std::vector<std::string>& warnings);

  /// A size or count. Absent: `fallback`; null: an issue (the library's types do not allow None
  /// there).
  std::int64_t size(std::string_view key, std::int64_t fallback, std::int64_t max = kLargestWidth,
                    std::int64_t min = 1);
  /// As above, under a second name as well (the library's attribute_map). Both present and
  /// different: an issue.
  std::int64_t size_or(std::string_view key, std::string_view alias, std::int64_t fallback,
                       std::int64_t max = kLargestWidth);
  /// Absent: `fallback`; null: no value.
  std::optional<std::int64_t> optional_size(std::string_view key,
                                            std::optional<std::int64_t> fallback,
                                            std::int64_t max = kLargestWidth, std::int64_t min = 1);
  double number(std::string_view key, double fallback, double min, double max);
  std::optional<double> optional_number(std::string_view key, std::optional<double> fallback,
                                        double min, double max);
  /// A dropout probability in [0, 1). Null is read as 0 where the type allows None.
  double probability(std::string_view key, double fallback);
  bool flag(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string fallback);
  std::string choice(std::string_view key, std::string fallback,
                     const std::vector<std::string>& allowed);
  std::optional<std::vector<std::int64_t>> integers(std::string_view key, std::int64_t min,
                                                    std::int64_t max);
  std::optional<std::vector<std::string>> texts(std::string_view key);
  /// A nested object; absent or null: an empty one.
  HfConfig nested(std::string_view key);
  /// The value as it stands, or nullptr.
  const Json* get(std::string_view key);
  bool has(std::string_view key);
  /// Known, and without effect on what we model (rotary scaling, router loss weights, ...).
  void ignore(std::initializer_list<std::string_view> keys);

  /// Number of labels of a classifier: entries of id2label, else num_labels, else 2.
  std::int64_t labels();
  /// A square side given as one number or as [height, width]; different sides are an issue.
  std::int64_t side(std::string_view key, std::int64_t fallback);

  void problem(std::string_view key, std::string message, std::string hint = {});
  /// An issue unless `whole` is a multiple of `part`; the hint lists the nearest allowed values.
  void require_multiple(std::string_view key, std::int64_t whole, std::string_view part_key,
                        std::int64_t part);
  /// Warns about every key that was never asked for, with the nearest known one.
  void finish();
  bool usable() const { return issues_.empty(); }

 private:
  void know(std::string_view key) { known_.insert(std::string(key)); }
  void refuse_null(std::string_view key);

  const Json* object_;
  std::string path_;
  IssueList& issues_;
  std::vector<std::string>& warnings_;
  ObjectReader reader_;
  std::set<std::string> known_;
};

}  // namespace foreshard
