#include "core/json.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

namespace foreshard {
namespace {

/// Builds a Json value while checking what nlohmann does not: duplicate keys, depth, integers
/// beyond int64.
class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return put(Json(nullptr)); }
  bool boolean(bool v) override { return put(Json(v)); }
  bool number_integer(number_integer_t v) override { return put(Json(v)); }
  bool number_unsigned(number_unsigned_t v) override {
    if (v > static_cast<number_unsigned_t>(INT64_MAX))
      return fail(fmt::format("{} does not fit into 64 bits", v));
    return put(Json(static_cast<std::int64_t>(v)));
  }
  bool number_float(number_float_t v, const string_t& text) override {
    if (!std::isfinite(v)) return fail("the number " + text + " is not finite");
    if (text.find_first_of(".eE") ==
        std::string::npos)  // a whole number that is read as one beyond
      return fail(text + " does not fit into 64 bits");
    return put(Json(v));
  }
  bool string(string_t& v) override { return put(Json(std::move(v))); }
  bool binary(binary_t&) override { return fail("binary value"); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool key(string_t& k) override {
    if (!keys_.back().insert(k).second) return fail("the key \"" + k + "\" stands here twice");
    key_ = std::move(k);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& e) override {
    std::string text = e.what();
    if (const auto at = text.find("] "); at != std::string::npos) text = text.substr(at + 2);
    error_ = text;
    return false;
  }

  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  bool fail(std::string message) {
    error_ = std::move(message);
    return false;
  }
  Json* attach(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *stack_.back();
    if (parent.is_object()) {  // Appends: operator[] would search, and the key is known to be new.
      auto& object = parent.get_ref<Json::object_t&>();
      object.emplace_back(key_, std::move(value));
      return &object.back().second;
    }
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool put(Json value) {
    attach(std::move(value));
    return true;
  }
  bool open(Json container) {
    if (static_cast<int>(stack_.size()) >= kDeepestJson) {
      return fail(fmt::format("nested deeper than {} levels", kDeepestJson));
    }
    stack_.push_back(attach(std::move(container)));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    stack_.pop_back();
    keys_.pop_back();
    return true;
  }

  std::string key_, error_;
  Json root_;
  std::vector<Json*> stack_;
  std::vector<std::set<std::string>> keys_;
};

[[noreturn]] void cannot_read(const std::filesystem::path& path, const std::string& why) {
  throw InputError(Issue{path.string(), "", why, ""});
}

}  // namespace

Json parse_json(std::string_view text, const std::string& file) {
  StrictBuilder builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    const bool binary = std::any_of(
        text.begin(),
        text.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(text.size(), 256)),
        [](char c) { return c == '\0'; });
    throw InputError(Issue{
        file, "", binary ? "not a JSON text but binary data" : "not valid JSON: " + builder.error(),
        text.empty() ? "the file is empty" : ""});
  }
  return builder.take();
}

std::string read_text_file(const std::filesystem::path& path) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) cannot_read(path, "is a folder, a file is wanted");
  if (!std::filesystem::exists(path, ec)) cannot_read(path, "no such file");
  if (std::filesystem::is_character_file(path, ec) || std::filesystem::is_block_file(path, ec))
    cannot_read(path, "is a device, a file is wanted");
  gzFile in = gzopen(path.c_str(), "rb");  // reads plain files too
  if (in == nullptr) cannot_read(path, "cannot be opened");
  std::string out;
  char buffer[1 << 16];
  int got = 0;
  while ((got = gzread(in, buffer, sizeof buffer)) > 0) {
    out.append(buffer, static_cast<std::size_t>(got));
    if (out.size() > kLargestJsonFile) break;
  }
  int error_number = Z_OK;
  const std::string why = got < 0 ? gzerror(in, &error_number) : "";
  gzclose(in);
  if (got < 0) cannot_read(path, "cannot be unpacked: " + why);
  if (out.size() > kLargestJsonFile) cannot_read(path, "larger than 1 GiB");
  return out;
}

Json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text_file(path), path.string());
}

std::string describe_json(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

ObjectReader::ObjectReader(const Json& object, std::string path, IssueList& issues)
    : object_(object.is_object() ? &object : nullptr), path_(std::move(path)), issues_(issues) {
  if (object_ == nullptr)
    issues_.add(path_, "found " + describe_json(object), "an object is wanted");
}

std::string ObjectReader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

const Json* ObjectReader::get(std::string_view key) {
  known_.emplace_back(key);
  if (object_ == nullptr) return nullptr;
  const auto it = object_->find(std::string(key));
  return it == object_->end() ? nullptr : &*it;
}

bool ObjectReader::has(std::string_view key) {
  const Json* v = get(key);
  return v != nullptr && !v->is_null();
}

bool ObjectReader::is_null(std::string_view key) {
  const Json* v = get(key);
  return v != nullptr && v->is_null();
}

void ObjectReader::report(std::string_view key, std::string message, std::string hint) {
  issues_.add(path_of(key), std::move(message), std::move(hint));
}

std::int64_t ObjectReader::integer(std::string_view key, std::int64_t fallback, std::int64_t min,
                                   std::int64_t max) {
  if (!has(key)) return fallback;
  const Json& v = *get(key);
  const std::string allowed = fmt::format("a whole number from {} to {}", min, max);
  std::int64_t n = 0;
  if (v.is_number_integer()) {
    n = v.get<std::int64_t>();
  } else if (v.is_number_float() && v.get<double>() == std::floor(v.get<double>()) &&
             std::fabs(v.get<double>()) < 9e15) {
    n = static_cast<std::int64_t>(v.get<double>());
  } else {
    report(key, "found " + describe_json(v), allowed);
    return fallback;
  }
  if (n < min || n > max) {
    report(key, "found " + describe_json(v), allowed);
    return fallback;
  }
  return n;
}

double ObjectReader::number(std::string_view key, double fallback, double min, double max) {
  if (!has(key)) return fallback;
  const Json& v = *get(key);
  if (!v.is_number() || v.get<double>() < min || v.get<double>() > max) {
    report(key, "found " + describe_json(v), fmt::format("a number from {} to {}", min, max));
    return fallback;
  }
  return v.get<double>();
}

bool ObjectReader::boolean(std::string_view key, bool fallback) {
  if (!has(key)) return fallback;
  const Json& v = *get(key);
  if (!v.is_boolean()) {
    report(key, "found " + describe_json(v), "true or false");
    return fallback;
  }
  return v.get<bool>();
}

std::string ObjectReader::string(std::string_view key, std::string fallback) {
  if (!has(key)) return fallback;
  const Json& v = *get(key);
  if (!v.is_string()) {
    report(key, "found " + describe_json(v), "a text");
    return fallback;
  }
  return v.get<std::string>();
}

std::string ObjectReader::choice(std::string_view key, std::string fallback,
                                 const std::vector<std::string>& allowed) {
  const std::string v = string(key, fallback);
  if (v == fallback || std::find(allowed.begin(), allowed.end(), v) != allowed.end()) return v;
  std::string hint = "allowed:";
  for (const std::string& a : allowed) hint += " " + a;
  if (const std::string near = nearest_name(v, allowed); !near.empty())
    hint += "; did you mean " + near + "?";
  report(key, "found \"" + v + "\"", hint);
  return fallback;
}

std::int64_t ObjectReader::required_integer(std::string_view key, std::int64_t min,
                                            std::int64_t max) {
  if (!has(key)) report(key, "missing", fmt::format("a whole number from {} to {}", min, max));
  return integer(key, min, min, max);
}

std::string ObjectReader::required_string(std::string_view key) {
  if (!has(key)) report(key, "missing", "a text");
  return string(key, "");
}

std::optional<std::vector<std::int64_t>> ObjectReader::integer_list(std::string_view key,
                                                                    std::int64_t min,
                                                                    std::int64_t max) {
  if (!has(key)) return std::nullopt;
  const Json& v = *get(key);
  const std::string allowed = fmt::format("a list of whole numbers from {} to {}", min, max);
  std::vector<std::int64_t> out;
  if (!v.is_array()) {
    report(key, "found " + describe_json(v), allowed);
    return std::nullopt;
  }
  for (const Json& e : v) {
    if (!e.is_number_integer() || e.get<std::int64_t>() < min || e.get<std::int64_t>() > max) {
      report(key, "found " + describe_json(e) + " in the list", allowed);
      return std::nullopt;
    }
    out.push_back(e.get<std::int64_t>());
  }
  return out;
}

std::optional<std::vector<std::string>> ObjectReader::string_list(std::string_view key) {
  if (!has(key)) return std::nullopt;
  const Json& v = *get(key);
  std::vector<std::string> out;
  if (!v.is_array()) {
    report(key, "found " + describe_json(v), "a list of texts");
    return std::nullopt;
  }
  for (const Json& e : v) {
    if (!e.is_string()) {
      report(key, "found " + describe_json(e) + " in the list", "a list of texts");
      return std::nullopt;
    }
    out.push_back(e.get<std::string>());
  }
  return out;
}

void ObjectReader::finish() {
  if (object_ == nullptr) return;
  for (const auto& [key, value] : object_->items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string near = nearest_name(key, known_);
    report(key, "unknown key", near.empty() ? "" : "did you mean " + near + "?");
  }
}

}  // namespace foreshard
