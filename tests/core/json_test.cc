#include "core/json.h"

#include <gtest/gtest.h>

#include <string>

namespace foreshard {
namespace {

std::string error_of(std::string_view text) {
  try {
    parse_json(text, "f.json");
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Json, ReadsEveryKindOfValue) {
  const Json j = parse_json(
      R"({"n": null, "t": true, "i": -9223372036854775808, "u": 9223372036854775807, "f": 1e3,
          "s": "\u00e9", "l": [1, []], "o": {"o": {}}})",
      "f.json");
  EXPECT_TRUE(j["n"].is_null());
  EXPECT_EQ(j["t"], true);
  EXPECT_EQ(j["i"].get<std::int64_t>(), INT64_MIN);
  EXPECT_EQ(j["u"].get<std::int64_t>(), INT64_MAX);
  EXPECT_TRUE(j["f"].is_number_float());
  EXPECT_EQ(j["s"], "\xc3\xa9");
  EXPECT_EQ(j["l"].size(), 2u);
}

TEST(Json, WhatIsNoJsonIsToldWithItsPlace) {
  EXPECT_NE(error_of("{\"a\": 1,\n \"b\" 2}").find("line 2, column 6"), std::string::npos)
      << error_of("{\"a\": 1,\n \"b\" 2}");
  EXPECT_NE(error_of("").find("the file is empty"), std::string::npos);
  EXPECT_NE(error_of(std::string_view("\x1f\0\1", 3)).find("binary data"), std::string::npos);
  for (const char* text : {"[1] 2", "[1,]", "{'a': 1}", "[NaN]", "[Infinity]", "[01]", "[+1]", "[",
                           "[1e999]", "[\"\xff\"]", "// c\n1"})
    EXPECT_NE(error_of(text), "no error") << text;
}

TEST(Json, AKeyStandsOnce) {
  EXPECT_NE(error_of(R"({"a": {"b": 1, "b": 2}})").find("\"b\" stands here twice"),
            std::string::npos);
  EXPECT_EQ(error_of(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})"), "no error");
}

// A whole number that is read as a double would be another one: 2^63 and 10^20 - 1.
TEST(Json, WholeNumbersFitInto64Bits) {
  for (const char* number : {"9223372036854775808", "-9223372036854775809", "18446744073709551615",
                             "18446744073709551616", "99999999999999999999"})
    EXPECT_NE(error_of(std::string("[") + number + "]").find("does not fit into 64 bits"),
              std::string::npos)
        << number;
  EXPECT_EQ(error_of("[99999999999999999999.0, 1E30, 1e-30]"), "no error");
}

TEST(Json, NestingEnds) {
  const auto nested = [](int levels) {
    return std::string(static_cast<std::size_t>(levels), '[') +
           std::string(static_cast<std::size_t>(levels), ']');
  };
  EXPECT_EQ(error_of(nested(kDeepestJson)), "no error");
  EXPECT_NE(error_of(nested(kDeepestJson + 1)).find("nested deeper"), std::string::npos);
}

TEST(ObjectReader, TellsEveryProblemAtOnceWithItsPath) {
  const Json j = parse_json(
      R"({"whole": 1.5, "range": 11, "word": 3, "kind": "gren", "flag": 1, "list": [1, "x"],
          "colour": 1, "null": null})",
      "f.json");
  IssueList issues("f.json");
  ObjectReader r(j, "top", issues);
  EXPECT_EQ(r.integer("whole", 7, 0, 10), 7);
  EXPECT_EQ(r.integer("range", 7, 0, 10), 7);
  EXPECT_EQ(r.string("word", "w"), "w");
  r.choice("kind", "", {"green", "red"});
  r.boolean("flag", false);
  r.integer_list("list", 0, 10);
  EXPECT_EQ(r.integer("null", 7, 0, 10), 7);  // null is absence
  EXPECT_EQ(r.integer("absent", 7, 0, 10), 7);
  r.required_integer("missing", 0, 10);
  r.finish();
  std::string all;
  for (const Issue& i : issues.issues()) all += i.text() + "\n";
  for (const char* path : {"top.whole", "top.range", "top.word", "top.kind", "top.flag", "top.list",
                           "top.missing", "top.colour"})
    EXPECT_NE(all.find(path), std::string::npos) << path << " in\n" << all;
  EXPECT_NE(all.find("green"), std::string::npos) << all;
  EXPECT_EQ(issues.issues().size(), 8u) << all;
}

}  // namespace
}  // namespace foreshard
