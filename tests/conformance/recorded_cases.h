#pragma once

// Recordings that the tests carry themselves, one folder of tests/conformance/data for each kind.

#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "conformance/golden_files.h"

namespace foreshard {

inline std::filesystem::path recorded_folder(const std::string& kind) {
  return std::filesystem::path(FORESHARD_SOURCE_DIR) / "tests/conformance/data" / kind;
}

inline std::vector<std::filesystem::path> recorded_cases(const std::string& kind) {
  return golden_files({recorded_folder(kind)});
}

/// The file's name as a name of a test.
inline std::string recorded_name(const ::testing::TestParamInfo<std::filesystem::path>& info) {
  std::string name = info.param.filename().string();
  name = name.substr(0, name.find(".json"));
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

/// golden_check KIND FILE passes.
inline void expect_recorded(const std::string& kind, const std::filesystem::path& file) {
  const auto results = check_all(*find_check_kind(kind), {file});
  ASSERT_EQ(results.size(), 1U);
  EXPECT_TRUE(results[0].ok) << results[0].first_difference;
}

}  // namespace foreshard
