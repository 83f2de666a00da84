#include "cli/foreign/key_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/json.h"
#include "core/text.h"

namespace foreshard::cli {
namespace {

constexpr std::size_t kLongestValue = 60;

std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string short_text(const Json& value) {
  std::string text = json_text(value);
  if (value.is_number_float() && text.size() > 2 && text.ends_with(".0"))
    text.resize(text.size() - 2);  // 5e8 in the file.
  if (text.size() <= kLongestValue) return text;
  std::size_t end = kLongestValue;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

/// One part of a path; quoted where it could be taken for something else.
std::string part_text(const std::string& key) {
  const bool plain = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c >= 0x80;
  });
  return plain ? key : json_text(Json(key));
}

std::string joined(const std::string& path, const std::string& part) {
  return path.empty() ? part : path + "." + part;
}

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('.') + 1); }
std::string_view parent_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

bool asks_for_nothing(const Json& value, std::string_view neutral) {
  if (value.is_null() || value == "auto") return true;
  if (value.is_object() && value.contains("enabled") && value.at("enabled") == false) return true;
  if (neutral.empty()) return false;
  for (const std::string& one : parts_of(std::string(neutral), '|'))
    if (value == Json::parse(one)) return true;
  return false;
}

/// As options are written.
std::string option_name(std::string_view key) {
  std::string out = lower_case(key);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

/// Names that mean something else in every section.
bool says_little(std::string_view name) {
  for (const char* one : {"enabled", "type", "params", "dtype", "device", "classes", "names",
                          "stages", "name", "mode", "folder", "steps", "seed"})
    if (name == one) return true;
  return false;
}

/// What becomes of a row's key, for somebody who typed it as an option.
std::string hint_of(const KeyRow& row, const std::vector<std::string>& known) {
  switch (row.rule) {
    case KeyRule::kTaken: {
      const std::size_t end = row.says.find_first_of(" ,:");
      const std::string option(row.says.substr(0, end));
      if (option.rfind("--", 0) != 0) return std::string(row.says);
      const bool here = std::find(known.begin(), known.end(), option.substr(2)) != known.end();
      return here ? "use " + std::string(row.says) : "";
    }
    case KeyRule::kSamePlan:
      return fmt::format("changes nothing that a plan says: {}", row.says);
    case KeyRule::kNotModelled:
      return fmt::format("not modelled: {}", row.says);
    case KeyRule::kRefused:
      return fmt::format("not planned: {}", row.says);
  }
  throw InternalError("rule of a key");
}

}  // namespace

const KeyRow* row_of(std::span<const KeyRow> table, const std::string& path) {
  const auto exact = [&](const std::string& key) -> const KeyRow* {
    const auto row =
        std::find_if(table.begin(), table.end(), [&](const KeyRow& r) { return r.key == key; });
    return row == table.end() ? nullptr : &*row;
  };
  if (const KeyRow* row = exact(path)) return row;
  if (is_section(table, path)) return nullptr;
  for (std::string_view above = path; !above.empty(); above = parent_of(above))
    if (const KeyRow* row = exact(std::string(above) + ".*")) return row;
  return nullptr;
}

bool is_section(std::span<const KeyRow> table, const std::string& path) {
  return std::any_of(table.begin(), table.end(), [&](const KeyRow& r) {
    return r.key.size() > path.size() + 1 && r.key.substr(0, path.size()) == path &&
           r.key.substr(path.size()) != ".*" && r.key[path.size()] == '.';
  });
}

std::string key_hint(std::string_view name, std::string_view kind, std::span<const KeyRow> table,
                     const std::vector<std::string>& known) {
  const std::string wanted = option_name(name);
  if (says_little(wanted)) return "";
  const std::string whole_file =
      fmt::format("foreshard import {} FILE -o job.yaml reads the whole file", kind);
  for (const KeyRow& row : table) {
    std::string_view key = row.key;
    if (key.size() > 2 && key.substr(key.size() - 2) == ".*") key.remove_suffix(2);
    const std::string own = option_name(last_part(key));
    if (own == wanted || own == "stage3-" + wanted) {
      const std::string hint = hint_of(row, known);
      if (!hint.empty()) return hint + "; " + whole_file;
    }
    for (std::string_view above = parent_of(key); !above.empty(); above = parent_of(above))
      if (option_name(last_part(above)) == wanted) return whole_file;
  }
  return "";
}

KeyReader::KeyReader(const Json& root, std::span<const KeyRow> table,
                     const std::map<std::string, std::string>& names, ForeignJob& job,
                     IssueList& issues, bool knows_auto)
    : table_(table), names_(names), job_(job), issues_(issues), knows_auto_(knows_auto) {
  if (!root.is_object())
    issues.add("", "keys with values are wanted, found " + describe_json(root));
  else
    walk(root, "", "");
}

// ----------------------------------------------------------------------------------------------
// the walk

void KeyReader::walk(const Json& object, const std::string& above, const std::string& path_above) {
  for (const auto& [key, value] : object.items()) {
    const std::string text = joined(above, part_text(key));
    std::string path = joined(path_above, key);
    if (key.empty() || key.find('.') != std::string::npos) {
      unknown(text, path);
      continue;
    }
    if (const auto other = names_.find(path); other != names_.end()) path = other->second;
    if (const KeyRow* row = row_of(table_, path))
      add(path, text, value, *row);
    else if (!is_section(table_, path))
      unknown(text, path);
    else if (value.is_object())
      walk(value, text, path);
    else if (!value.is_null())
      issues_.add(text,
                  fmt::format("a section with keys is wanted, found {}", describe_json(value)));
  }
}

void KeyReader::add(const std::string& path, const std::string& text, const Json& value,
                    const KeyRow& row) {
  const auto [entry, fresh] = entries_.emplace(path, Entry{text, &value, row.rule, std::nullopt});
  if (!fresh)
    return issues_.add(text, fmt::format("says the same as {}", entry->second.written),
                       "one of them");
  order_.push_back(path);
  if (row.rule == KeyRule::kTaken && !value.is_null()) return;
  if (row.rule == KeyRule::kSamePlan)
    return account(path, Becomes::kSamePlan, std::string(row.says));
  if (asks_for_nothing(value, row.neutral))
    return account(path, Becomes::kSamePlan,
                   value.is_null() ? "null: as if absent" : "asks for nothing");
  if (row.rule == KeyRule::kNotModelled)
    return account(path, Becomes::kNotModelled, std::string(row.says));
  refuse(path, fmt::format("found {}", short_text(value)), std::string(row.says));
}

void KeyReader::unknown(const std::string& text, const std::string& path) {
  std::vector<std::string> beside;
  std::string elsewhere;
  const std::string name(last_part(path));
  for (const KeyRow& r : table_) {
    std::string_view key = r.key;
    if (key.size() > 2 && key.substr(key.size() - 2) == ".*") key.remove_suffix(2);
    for (; !key.empty(); key = parent_of(key)) {
      if (parent_of(key) == parent_of(path)) beside.emplace_back(last_part(key));
      if (last_part(key) == name) elsewhere = key;
    }
  }
  const std::string near = nearest_name(name, beside);
  issues_.add(text, "unknown key",
              !near.empty()        ? fmt::format("nearest is \"{}\"", near)
              : !elsewhere.empty() ? fmt::format("there is {}", elsewhere)
                                   : fmt::format("not read by {}", job_.program));
}

// ----------------------------------------------------------------------------------------------
// values

const Json* KeyReader::find(std::string_view key) const {
  const auto entry = entries_.find(key);
  return entry == entries_.end() || entry->second.value->is_null() ? nullptr : entry->second.value;
}

std::string KeyReader::written(std::string_view key) const {
  const auto entry = entries_.find(key);
  return entry == entries_.end() ? std::string(key) : entry->second.written;
}

bool KeyReader::is_auto(std::string_view key) const {
  const Json* value = find(key);
  return knows_auto_ && value != nullptr && *value == "auto";
}

void KeyReader::wrong_type(std::string_view key, const std::string& wanted) {
  if (wrong_.insert(std::string(key)).second)
    issues_.add(written(key), fmt::format("found {}", short_text(*find(key))),
                wanted + " is wanted");
}

std::optional<bool> KeyReader::boolean(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr || is_auto(key)) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_number_integer() && (*value == 0 || *value == 1)) return *value == 1;
  if (value->is_string()) {
    const std::string text = lower_case(value->get<std::string>());
    for (const char* yes : {"true", "yes", "on"})
      if (text == yes) return true;
    for (const char* no : {"false", "no", "off"})
      if (text == no) return false;
  }
  wrong_type(key, "true or false");
  return std::nullopt;
}

std::optional<double> KeyReader::number(std::string_view key, double min, double max) {
  const Json* value = find(key);
  if (value == nullptr || is_auto(key)) return std::nullopt;
  if (value->is_number()) {
    const double n = value->get<double>();
    if (n >= min && n <= max) return n;
  }
  wrong_type(key, fmt::format("a number from {} to {}", min, max));
  return std::nullopt;
}

std::optional<std::int64_t> KeyReader::whole(std::string_view key, std::int64_t min,
                                             std::int64_t max) {
  const Json* value = find(key);
  if (value == nullptr || is_auto(key)) return std::nullopt;
  if (value->is_number_integer()) {
    const auto n = value->get<std::int64_t>();
    if (n >= min && n <= max) return n;
  } else if (value->is_number()) {  // 5e8 is a floating-point number to JSON.
    const double n = value->get<double>();
    if (n >= static_cast<double>(min) && n <= static_cast<double>(max) && n < 9.2e18 &&
        n == std::floor(n))
      return static_cast<std::int64_t>(n);
  }
  wrong_type(key, fmt::format("a whole number from {} to {}", min, max));
  return std::nullopt;
}

std::optional<std::string> KeyReader::word(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr || is_auto(key)) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  wrong_type(key, "a word in quotes");
  return std::nullopt;
}

std::optional<std::string> KeyReader::choice(std::string_view key,
                                             const std::vector<std::string>& allowed) {
  const Json* value = find(key);
  if (value == nullptr || is_auto(key)) return std::nullopt;
  const std::string given = value->is_string() ? value->get<std::string>() : json_text(*value);
  for (const std::string& one : allowed)
    if (given == one || lower_case(given) == lower_case(one)) return one;
  if (!wrong_.insert(std::string(key)).second) return std::nullopt;
  const std::string near = nearest_name(given, allowed);
  issues_.add(written(key),
              fmt::format("found {}{}", short_text(*value),
                          near.empty() ? "" : ", nearest is \"" + near + "\""),
              fmt::format("allowed: {}", fmt::join(allowed, ", ")));
  return std::nullopt;
}

std::optional<std::vector<std::string>> KeyReader::words(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr || is_auto(key)) return std::nullopt;
  if (value->is_string()) return parts_of(value->get<std::string>(), ',');
  const bool strings =
      value->is_array() &&
      std::all_of(value->begin(), value->end(), [](const Json& v) { return v.is_string(); });
  if (strings) return value->get<std::vector<std::string>>();
  wrong_type(key, "a list of names");
  return std::nullopt;
}

// ----------------------------------------------------------------------------------------------
// what becomes of them

void KeyReader::account(std::string_view key, Becomes becomes, std::string says) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return;
  Entry& entry = at->second;
  const auto weight = [](Becomes b) {
    return b == Becomes::kOption ? 2 : b == Becomes::kNotModelled ? 1 : 0;
  };
  if (!entry.fate || weight(entry.fate->becomes) < weight(becomes))
    entry.fate = ForeignKey{entry.written, short_text(*entry.value), becomes, std::move(says)};
  else if (entry.fate->becomes == Becomes::kOption && becomes == Becomes::kOption)
    entry.fate->says += "; " + says;
}

void KeyReader::set(std::string option, std::string value, std::string_view key) {
  const auto entry = entries_.find(key);
  std::string from = entry == entries_.end()
                         ? std::string(key)
                         : entry->second.written + ": " + short_text(*entry->second.value);
  account(key, Becomes::kOption, option + ": " + value);
  job_.settings.push_back({std::move(option), std::move(value), std::move(from)});
}

void KeyReader::same(std::string_view key, std::string says) {
  account(key, Becomes::kSamePlan, std::move(says));
}

void KeyReader::not_modelled(std::string_view key, std::string says) {
  if (entries_.find(key) != entries_.end())
    account(key, Becomes::kNotModelled, std::move(says));
  else
    job_.keys.push_back({std::string(key), "", Becomes::kNotModelled, std::move(says)});
}

void KeyReader::open(std::string option, std::string taken, std::string says) {
  job_.open.push_back({std::move(option), std::move(taken), std::move(says)});
}

void KeyReader::open(std::string option, std::string taken, std::string says,
                     std::string_view key) {
  account(key, Becomes::kSamePlan, fmt::format("leaves {} open", option));
  open(std::move(option), std::move(taken),
       fmt::format("{} is {}: {}", written(key), short_text(*find(key)), says));
}

void KeyReader::refuse(std::string_view key, std::string message, std::string hint) {
  issues_.add(written(key), std::move(message), std::move(hint));
}

void KeyReader::finish() {
  for (const std::string& path : order_) {
    Entry& entry = entries_.at(path);
    if (entry.fate)
      job_.keys.push_back(std::move(*entry.fate));
    else if (issues_.empty())
      throw InternalError(fmt::format("nothing became of {}", entry.written));
  }
}

}  // namespace foreshard::cli
