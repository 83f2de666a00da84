// Facts of small models of every family, taken from transformers 5.24 on the meta device, against
// our importer and planner.

#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <string>
#include <vector>

#include "conformance/golden_files.h"
#include "conformance/models_check.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> cases() {
  return golden_files({fs::path(FORESHARD_SOURCE_DIR) / "tests/conformance/data/models"});
}

std::string test_name(const ::testing::TestParamInfo<fs::path>& info) {
  std::string name = info.param.filename().string();
  name = name.substr(0, name.find(".json"));
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

class ModelsGolden : public ::testing::TestWithParam<fs::path> {};

TEST_P(ModelsGolden, TensorsUnitsFlopsAndSavedBytesAgree) {
  const auto results = check_models(GetParam());
  ASSERT_EQ(results.size(), 1U);
  EXPECT_TRUE(results[0].ok) << results[0].first_difference;
}

INSTANTIATE_TEST_SUITE_P(Recorded, ModelsGolden, ::testing::ValuesIn(cases()), test_name);

}  // namespace
}  // namespace foreshard
