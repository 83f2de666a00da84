#pragma once

// The keys that another program reads from its job file, and a reader that accounts for every one
// of them.

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/foreign/foreign_job.h"
#include "core/json_fwd.h"

namespace foreshard::cli {

enum class KeyRule : std::uint8_t {
  kTaken,        ///< Code of the kind reads it and says what becomes of it.
  kSamePlan,     ///< Changes nothing that a plan says.
  kNotModelled,  ///< The plan lacks what it asks for.
  kRefused       ///< A plan without it would be wrong.
};

struct KeyRow {
  std::string_view key;  ///< Path with dots; "a.*" stands for a and everything below it.
  KeyRule rule;
  /// What it means; kSamePlan: why nothing changes; kNotModelled: what the plan lacks; kRefused:
  /// why.
  std::string_view says;
  /// kNotModelled, kRefused: value that asks for nothing, as JSON. An object with "enabled": false
  /// asks for nothing, too.
  std::string_view neutral = {};
};

/// The row of a path, that of a section above it where that stands for everything below; nullptr if
/// there is none.
const KeyRow* row_of(std::span<const KeyRow> table, const std::string& path);
/// Are there rows below this path?
bool is_section(std::span<const KeyRow> table, const std::string& path);

/// What to say of an option that bears the name of a key of this program ("overlap-comm"), in a
/// command that knows `known` options; "" if no key has that name.
std::string key_hint(std::string_view name, std::string_view kind, std::span<const KeyRow> table,
                     const std::vector<std::string>& known);

/// Walks through a file with the table of its program: every key is taken, the same plan, not
/// modelled, refused or unknown, and appears in the job once.
class KeyReader {
 public:
  /// `names`: keys that stand for others ("bfloat16" for "bf16"), by path.
  KeyReader(const Json& root, std::span<const KeyRow> table,
            const std::map<std::string, std::string>& names, ForeignJob& job, IssueList& issues,
            bool knows_auto = false);

  /// The value of a taken key; nullptr where it is absent or null.
  const Json* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }
  bool is_auto(std::string_view key) const;
  /// Each reports a wrong type or range and answers nothing then, or where the key is absent or
  /// "auto".
  std::optional<bool> boolean(std::string_view key);
  std::optional<std::int64_t> whole(std::string_view key, std::int64_t min, std::int64_t max);
  std::optional<double> number(std::string_view key, double min, double max);
  std::optional<std::string> word(std::string_view key);
  /// One of `allowed`, case as given or folded to lower case; anything else is reported.
  std::optional<std::string> choice(std::string_view key, const std::vector<std::string>& allowed);
  /// A list of strings, or one string with commas.
  std::optional<std::vector<std::string>> words(std::string_view key);

  /// What becomes of a key: a line of the options file (several are possible), else what is not
  /// modelled, else the first reason why nothing changes.
  void set(std::string option, std::string value, std::string_view key);
  void same(std::string_view key, std::string says);
  /// Also of a default that the file does not say, or of a part of a key's meaning.
  void not_modelled(std::string_view key, std::string says);
  void open(std::string option, std::string taken, std::string says);
  /// A key whose meaning is left open.
  void open(std::string option, std::string taken, std::string says, std::string_view key);
  /// A value that is wrong or cannot be planned.
  void refuse(std::string_view key, std::string message, std::string hint = {});

  /// Writes the keys into the job. Every taken key must have been accounted for.
  void finish();

 private:
  struct Entry {
    std::string written;  ///< The path as the file has it.
    const Json* value = nullptr;
    KeyRule rule = KeyRule::kTaken;
    std::optional<ForeignKey> fate;
  };
  void walk(const Json& object, const std::string& written, const std::string& path);
  void add(const std::string& path, const std::string& written, const Json& value,
           const KeyRow& row);
  void unknown(const std::string& written, const std::string& path);
  void wrong_type(std::string_view key, const std::string& wanted);
  std::string written(std::string_view key) const;
  void account(std::string_view key, Becomes becomes, std::string says);

  std::span<const KeyRow> table_;
  const std::map<std::string, std::string>& names_;
  ForeignJob& job_;
  IssueList& issues_;
  bool knows_auto_;  ///< "auto" stands for a value that somebody fills in.
  std::map<std::string, Entry, std::less<>> entries_;  ///< By path of the table.
  std::vector<std::string> order_;                     ///< Paths as the file has them.
  std::set<std::string> wrong_;                        ///< Reported for their value.
};

}  // namespace foreshard::cli
