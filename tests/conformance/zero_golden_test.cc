// Recorded event logs of DeepSpeed 0.19.8 against our planner (rules Z12-*, Z1-*, Z2-*, Z3-*).

#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "conformance/golden_files.h"
#include "conformance/json_compare.h"
#include "conformance/zero_run.h"
#include "core/json.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

fs::path data_folder() { return fs::path(FORESHARD_SOURCE_DIR) / "tests/conformance/data/zero"; }

std::vector<fs::path> cases() { return golden_files({data_folder()}); }

std::string test_name(const ::testing::TestParamInfo<fs::path>& info) {
  std::string name = info.param.filename().string();
  name = name.substr(0, name.find(".json"));
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

class ZeroGolden : public ::testing::TestWithParam<fs::path> {};

TEST_P(ZeroGolden, EventsAndTablesAgree) {
  const auto results = check_all(*find_check_kind("zero"), {GetParam()});
  ASSERT_EQ(results.size(), 1U);
  EXPECT_TRUE(results[0].ok) << results[0].first_difference;
}

INSTANTIATE_TEST_SUITE_P(Recorded, ZeroGolden, ::testing::ValuesIn(cases()), test_name);

/// The comparison notices a changed byte count and a changed owner.
TEST(ZeroGoldenComparison, NoticesDifferences) {
  const Json golden = read_json_file(data_folder() / "hand-z2g1-bucket-64.json");
  const Json found = run_zero_case(golden.at("case"));
  Json bytes = found, owner = found;
  for (Json& e : bytes["events"]) {
    if (e.at("ev") == "all_reduce") e["out_bytes"] = 1;
  }
  EXPECT_TRUE(first_difference(bytes, found, "result"));
  owner["groups"][0]["first_offset"] = 1;
  EXPECT_TRUE(first_difference(owner, found, "result"));
}

}  // namespace
}  // namespace foreshard
