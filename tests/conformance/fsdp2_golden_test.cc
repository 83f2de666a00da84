// Recorded event logs of PyTorch 2.15's fully_shard against our planner (rules F2-*; the case of
// each rule carries its id).

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "conformance/fsdp2_run.h"
#include "conformance/golden_files.h"
#include "conformance/json_compare.h"
#include "core/json.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

fs::path data_folder() { return fs::path(FORESHARD_SOURCE_DIR) / "tests/conformance/data/fsdp2"; }

std::vector<fs::path> cases() { return golden_files({data_folder()}); }

std::string test_name(const ::testing::TestParamInfo<fs::path>& info) {
  std::string name = info.param.stem().string().substr(5);  // without "case_"
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

class Fsdp2Golden : public ::testing::TestWithParam<fs::path> {};

TEST_P(Fsdp2Golden, EventsUnitsAndErrorsAgree) {
  const auto results = check_all(*find_check_kind("fsdp2"), {GetParam()});
  ASSERT_EQ(results.size(), 1U);
  EXPECT_TRUE(results[0].ok) << results[0].first_difference;
}

INSTANTIATE_TEST_SUITE_P(Recorded, Fsdp2Golden, ::testing::ValuesIn(cases()), test_name);

/// The comparison notices one changed byte count, one missing event and one changed unit.
TEST(Fsdp2GoldenComparison, NoticesEveryKindOfDifference) {
  const Json golden = read_json_file(data_folder() / "case_f2_b_1_default.json");
  const Json found = run_fsdp2_case(golden.at("case"));
  EXPECT_FALSE(first_difference(golden.at("result"), found, "result"));
  Json bytes = golden.at("result"), missing = bytes, unit = bytes;
  for (Json& e : bytes["events"]) {
    if (e.at("ev") == "all_gather") e["out_bytes"] = 1;
  }
  EXPECT_TRUE(first_difference(bytes, found, "result"));
  missing["events"].erase(missing["events"].size() - 1);
  EXPECT_TRUE(first_difference(missing, found, "result"));
  unit["units"][0]["S"] = 1;
  EXPECT_TRUE(first_difference(unit, found, "result"));
}

/// All recorded cases, where the folder of recordings is present.
TEST(Fsdp2Golden, AllRecordedCases) {
  const char* shared = std::getenv("FORESHARD_SHARED");
  const fs::path root = shared != nullptr ? fs::path(shared)
                                          : fs::path(FORESHARD_SOURCE_DIR).parent_path() / "shared";
  const fs::path folder = root / "golden/fsdp2";
  if (!fs::exists(folder)) GTEST_SKIP() << "no recordings at " << folder;
  for (const CheckResult& r : check_all(*find_check_kind("fsdp2"), {folder}))
    EXPECT_TRUE(r.ok) << r.id << ": " << r.first_difference;
}

}  // namespace
}  // namespace foreshard
